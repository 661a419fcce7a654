//! The routes of the admin port, read from the source that registers them.

/// Returns the method and the path of each `.route("/healthz", get(healthz))` in the text of `src/api.rs`.
pub(crate) fn admin_routes(code: &str) -> Vec<(String, String)> {
    let route = |line: &str| {
        let (path, handler) = line.trim().strip_prefix(".route(\"")?.split_once("\", ")?;
        let (method, _) = handler.split_once('(')?;
        Some((method.to_uppercase(), path.to_owned()))
    };
    let routes: Vec<_> = code.lines().filter_map(route).collect();
    assert!(routes.len() > 15, "the routes were not found in src/api.rs: {routes:?}");
    routes
}
