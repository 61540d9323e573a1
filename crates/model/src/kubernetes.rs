//! The environment variables that Kubernetes sets in each container for each Service. Those of a Service with a name
//! such as `signalbox-config` begin with `SIGNALBOX_`, as signalbox's own variables do.

/// The advice about the variables of a Service, for messages.
pub const SERVICE_ADVICE: &str = "Kubernetes makes such variables for a Service with this name; they are ignored; \
                                  \"enableServiceLinks: false\" in the Pod avoids them";

/// Returns whether Kubernetes may have set a variable with this name and value for a Service: `…_SERVICE_HOST`;
/// `…_SERVICE_PORT`, alone or followed by the name of a port; `…_PORT` with a URL such as `tcp://10.0.0.1:80`; and
/// `…_PORT_80_TCP`, alone or followed by `_PROTO`, `_PORT` or `_ADDR`.
pub fn is_of_service(name: &str, value: &str) -> bool {
    let without = |name, endings: &[&str]| endings.iter().find_map(|end| str::strip_suffix(name, end));
    let is_of_port = || {
        let name = without(name, &["_PROTO", "_PORT", "_ADDR"]).unwrap_or(name);
        let numbered = without(name, &["_TCP", "_UDP", "_SCTP"])?.rsplit_once("_PORT_");
        numbered.map(|(_, number)| number.parse::<u16>().is_ok())
    };
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || name.ends_with("_PORT") && value.contains("://")
        || is_of_port() == Some(true)
}
