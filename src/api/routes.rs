//! Table of the routes of the admin port: handler, the right that each needs, and what the audit log records of it.
//!
//! The router is built from this table alone, so there is no route without a stated right.

use std::sync::Arc;

use axum::{
    Router,
    middleware::from_fn_with_state,
    routing::{delete, get, post},
};

use super::{
    Api,
    access::{self, AdminGate, AdminRoute, Effect, RouteNeed},
    console, dev, dev_forward, events, flows, groups, nodes, presence, stats, trace,
};
use crate::keys::Scope;

macro_rules! routes {
    ($($method:ident $path:literal $need:ident $effect:ident [$($id:literal)*] $handler:path;)*) => {
        /// All routes.
        pub const ROUTES: &[AdminRoute] = &[$(AdminRoute {
            method: stringify!($method),
            path: $path,
            need: routes!(@need $need),
            effect: Effect::$effect,
            ids: &[$($id),*],
        },)*];

        /// Builds the router; each route passes the gate.
        pub(super) fn router(gate: &Arc<AdminGate>) -> Router<Api> {
            let mut all = ROUTES.iter();
            let router = Router::new();
            $(let router = match all.next() {
                Some(route) => router.route(
                    $path,
                    $method($handler).route_layer(from_fn_with_state((Arc::clone(gate), route), access::check)),
                ),
                None => router,
            };)*
            router
        }
    };
    (@need Open) => { RouteNeed::Open };
    (@need AnyKey) => { RouteNeed::AnyKey };
    (@need $scope:ident) => { RouteNeed::Scope(Scope::$scope) };
}

routes! {
    get "/healthz" Open Query [] super::healthz;
    get "/livez" Open Query [] super::livez;
    get "/readyz" Open Query [] super::readyz;
    get "/metrics" Open Query [] super::metrics;
    get "/v1/console" Open Query [] console::about;
    get "/v1/key" AnyKey Query [] access::own_key;
    get "/v1/stats/stream" Read Stream [] stats::stream;
    get "/v1/flows" Read Query [] flows::list;
    post "/v1/dev/token" Users Change ["user" "device"] dev::token;
    post "/v1/dev/cut" Users Change ["user" "device"] dev::cut;
    post "/v1/dev/abort" Operate Crash [] dev::abort;
    post "/v1/dev/forward" AnyKey Change ["node"] dev_forward::forward;
    post "/v1/drain" Operate Change [] super::begin_drain;
    delete "/v1/drain" Operate Change [] super::abort_drain;
    get "/v1/nodes" Read Query [] nodes::list;
    post "/v1/weight" Operate Change [] nodes::set_weight;
    get "/v1/users/{user}/routes" Read Query [] nodes::where_is;
    get "/v1/users/{user}/presence" Read Query [] presence::of_user;
    post "/v1/presence" Read Query [] presence::of_users;
    get "/v1/trace" Read Query [] trace::steps;
    post "/v1/trace" Operate Change ["msg" "user"] trace::watch;
    get "/v1/events" Read Query [] events::follow;
    post "/v1/groups" Groups Change ["id" "owner" "members"] groups::create;
    get "/v1/groups/{id}" Read Query [] groups::show;
    delete "/v1/groups/{id}" Groups Change ["by"] groups::end;
    post "/v1/groups/{id}/members" Groups Change ["by" "add" "remove" "leave" "mute" "unmute"] groups::change_members;
    post "/v1/groups/{id}/roles" Groups Change ["by" "users"] groups::change_roles;
    post "/v1/groups/{id}/settings" Groups Change ["by"] groups::change_settings;
}

#[cfg(test)]
mod tests {
    use super::{super::dev_forward::FORWARDED, *};

    #[test]
    fn routes_that_may_change_something_need_a_scope_and_are_recorded() {
        for route in ROUTES {
            let is_change = matches!(route.effect, Effect::Change | Effect::Crash);
            assert!(!is_change || route.need != RouteNeed::Open, "{route:?}");
            assert!(route.method == "get" || is_change || route.path == "/v1/presence", "{route:?}");
            assert!(route.method != "get" || !is_change, "{route:?}");
            assert!(!is_change || route.need != RouteNeed::Scope(Scope::Read), "{route:?}");
        }
        for (method, path, need) in FORWARDED {
            let route = ROUTES.iter().find(|it| it.path == path && it.method.eq_ignore_ascii_case(method));
            assert_eq!(route.map(|it| it.need), Some(need), "{method} {path}");
        }
        let open: Vec<_> = ROUTES.iter().filter(|it| it.need == RouteNeed::Open).map(|it| it.path).collect();
        assert_eq!(open, ["/healthz", "/livez", "/readyz", "/metrics", "/v1/console"]);
    }
}
