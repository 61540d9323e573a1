//! The two formats of a scrape. The encoder writes OpenMetrics; the older text format, which every reader of metrics
//! understands, is made from it.

use std::fmt::Write;

use hyper::header::{ACCEPT, HeaderMap};

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    OpenMetrics,
    /// The text format of Prometheus, version 0.0.4.
    Text,
}

impl Format {
    /// OpenMetrics, if the header Accept asks for it and does not prefer plain text.
    pub(super) fn wanted(headers: &HeaderMap) -> Self {
        let quality = |kind| {
            let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
            let ranges =
                values.flat_map(|value| value.split(',')).filter_map(|range| quality_of(range, kind));
            ranges.fold(0.0, f32::max)
        };
        let wanted = quality("application/openmetrics-text");
        if wanted > 0.0 && wanted >= quality("text/plain") { Self::OpenMetrics } else { Self::Text }
    }

    /// The type of the answer.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// A scrape in this format.
    ///
    /// `open_metrics`: the scrape as the encoder has written it.
    pub(super) fn of(self, open_metrics: String) -> String {
        match self {
            Self::OpenMetrics => open_metrics,
            Self::Text => text_of(&open_metrics),
        }
    }
}

/// The weight of a media range of Accept, from 0 to 1; `None`: it is of another type.
fn quality_of(range: &str, kind: &str) -> Option<f32> {
    let mut parts = range.split(';').map(str::trim);
    if !parts.next()?.eq_ignore_ascii_case(kind) {
        return None;
    }
    let weight =
        parts.filter_map(|part| part.split_once('=')).find(|(name, _)| name.eq_ignore_ascii_case("q"));
    Some(weight.map_or(1.0, |(_, weight)| weight.trim().parse().unwrap_or(0.0)))
}

/// A scrape in the older text format. There, a family of counters has the name of its samples, there is no type `info`, and
/// units and the end are not marked.
fn text_of(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    // Its name changes with the type, which is in the next line.
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
            // A string takes everything.
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
    fn open_metrics_is_for_those_who_ask_for_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, expected) in [
            (prometheus, Format::OpenMetrics),
            ("Application/OpenMetrics-Text; version=1.0.0", Format::OpenMetrics),
            ("text/plain;version=0.0.4;q=0.5, application/openmetrics-text;q=0.4", Format::Text),
            ("application/openmetrics-text;q=0", Format::Text),
            ("application/openmetrics-text; q=x", Format::Text),
            ("text/html,*/*;q=0.8", Format::Text),
            ("", Format::Text),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            assert_eq!(Format::wanted(&headers), expected, "{accept}");
        }
        assert_eq!(Format::wanted(&HeaderMap::new()), Format::Text);
    }

    #[test]
    fn the_older_format_names_families_as_their_samples() {
        let open_metrics = "# HELP a_seconds Some \\\\ help.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\n\
                            a_seconds_total{name=\"# x\"} 1.0\n# HELP b Of the build.\n# TYPE b info\nb_info{v=\"1\"} 1\n\
                            # HELP c Now.\n# TYPE c gauge\nc 3\n# EOF\n";
        let text = "# HELP a_seconds_total Some \\\\ help.\n# TYPE a_seconds_total counter\n\
                    a_seconds_total{name=\"# x\"} 1.0\n# HELP b_info Of the build.\n# TYPE b_info gauge\nb_info{v=\"1\"} 1\n\
                    # HELP c Now.\n# TYPE c gauge\nc 3\n";
        assert_eq!(Format::Text.of(open_metrics.to_owned()), text);
        assert_eq!(Format::OpenMetrics.of(open_metrics.to_owned()), open_metrics);
    }
}
