//! The two formats of a scrape. The encoder writes OpenMetrics; the older text format, which every reader of metrics
//! understands, is made from it.

use std::fmt::Write;

use hyper::header::{ACCEPT, HeaderMap};

const OPEN_METRICS: &str = "application/openmetrics-text";

/// Returns the content type that the header Accept asks for, and a scrape in that format. `open_metrics` is the scrape
/// as the encoder has written it.
pub(super) fn wanted(headers: &HeaderMap, open_metrics: String) -> (&'static str, String) {
    let mut values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    if values.any(|value| value.to_ascii_lowercase().contains(OPEN_METRICS)) {
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", open_metrics)
    } else {
        ("text/plain; version=0.0.4; charset=utf-8", text_of(&open_metrics))
    }
}

/// Returns a scrape in the older text format. There, a family of counters has the name of its samples, there is no type
/// `info`, and units and the end are not marked.
fn text_of(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    // The name in a HELP line depends on the type, which is in the next line.
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(family) = line.strip_prefix("# HELP ") {
            help = family.split_once(' ');
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|family| family.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            // Writing to a string does not fail.
            if let Some((_, help)) = help.take() {
                let _ = writeln!(text, "# HELP {name}{suffix} {help}");
            }
            let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_format_names_families_as_their_samples() {
        let open_metrics = "# HELP a_seconds Some \\\\ help.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\n\
                            a_seconds_total{name=\"# x\"} 1.0\n# HELP b Of the build.\n# TYPE b info\nb_info{v=\"1\"} 1\n\
                            # HELP c Now.\n# TYPE c gauge\nc 3\n# EOF\n";
        let text = "# HELP a_seconds_total Some \\\\ help.\n# TYPE a_seconds_total counter\n\
                    a_seconds_total{name=\"# x\"} 1.0\n# HELP b_info Of the build.\n# TYPE b_info gauge\nb_info{v=\"1\"} 1\n\
                    # HELP c Now.\n# TYPE c gauge\nc 3\n";
        assert_eq!(text_of(open_metrics), text);
    }
}
