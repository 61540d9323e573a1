use std::time::Duration;

use signalbox_model::{NoTime, UnixMilliseconds, UnixSeconds, span};

#[test]
fn a_span_is_seconds_or_has_a_unit() {
    for (text, seconds) in [
        ("30", 30.0),
        ("0.5", 0.5),
        ("30s", 30.0),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("1.5h", 5400.0),
        ("500ms", 0.5),
    ] {
        assert_eq!(span(text), Some(Duration::from_secs_f64(seconds)), "{text}");
    }
    let wrong = "s|0|0s|-1|nan|inf|1d|5 m|5mm|1e9|1e3|+3|1000000000|1e300h|ü|".split('|');
    for text in wrong {
        assert_eq!(span(text), None, "{text}");
    }
}

#[test]
fn a_time_of_day_is_that_of_utc() {
    // Taken from date(1).
    for (unix_s, expected) in [
        (0, "1970-01-01T00:00:00Z"),
        (951_782_399, "2000-02-28T23:59:59Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (951_868_800, "2000-03-01T00:00:00Z"),
        (1_798_761_599, "2026-12-31T23:59:59Z"),
        (4_107_542_400, "2100-03-01T00:00:00Z"),
    ] {
        assert_eq!(UnixSeconds(unix_s).to_string(), expected);
        assert_eq!(expected.parse(), Ok(UnixMilliseconds(unix_s * 1000)));
        let time = UnixMilliseconds(unix_s * 1000 + 7);
        assert_eq!(time.to_string().parse(), Ok(time));
    }
    assert!(!UnixSeconds(u64::MAX).to_string().is_empty(), "any time of a server can be shown");
}

#[test]
fn the_right_part_of_a_time_may_be_left_out() {
    let whole: UnixMilliseconds = "2026-11-21T00:00:00.000Z".parse().unwrap();
    for text in ["2026-11-21", "2026-11-21T00:00", "2026-11-21T00:00Z", "2026-11-21T00:00:00Z"] {
        assert_eq!(text.parse(), Ok(whole), "{text}");
    }
    for text in [
        "",
        "Z",
        "24h",
        "2026",
        "2026-11-2",
        "2026-13-01",
        "2026-11-21 01:52",
        "2026-11-21T24:00",
        "1969-12-31",
        "2026-11-21T00:00:00.000ZZ",
        "+026-11-21",
    ] {
        assert_eq!(text.parse::<UnixMilliseconds>(), Err(NoTime), "{text}");
    }
}
