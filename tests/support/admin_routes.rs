//! The routes of the admin port, from the table that the router is built from.

use tidegate::api::routes::ROUTES;

/// Returns the method and the path of each route.
pub(crate) fn admin_routes() -> Vec<(String, String)> {
    ROUTES.iter().map(|route| (route.method.to_uppercase(), route.path.to_owned())).collect()
}
