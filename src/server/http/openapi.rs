//! The description of the API (`docs/openapi.json`), which is a part of the program.

use hyper::StatusCode;

use super::answer::{JSON, Response, respond};

/// Where it is served.
pub(super) const PATH: &str = "/api/v1/openapi.json";

const DESCRIPTION: &str = include_str!("../../../docs/openapi.json");

pub(super) fn description() -> Response {
    respond(StatusCode::OK, JSON, DESCRIPTION)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::super::routes::ROUTES;
    use super::*;

    #[test]
    fn it_has_every_path_and_method_and_no_other() {
        let description: Value = serde_json::from_str(DESCRIPTION).unwrap();
        let paths = description["paths"].as_object().unwrap();
        let methods = |path: &Value| path.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
        let described: BTreeSet<_> =
            paths.iter().map(|(path, methods_of)| (path.clone(), methods(methods_of))).collect();
        let of = |path: &str, methods: &[&str]| {
            (path.to_owned(), methods.iter().map(|method| (*method).to_owned()).collect::<BTreeSet<_>>())
        };
        let methods_of = |is_read: bool| if is_read { &["get", "post"][..] } else { &["post"] };
        let served = ROUTES.iter().map(|route| of(route.path, methods_of(route.is_read())));
        let others = ["/healthz", "/readyz", "/metrics", PATH].map(|path| of(path, &["get"]));
        assert_eq!(described, served.chain(others).collect());
    }
}
