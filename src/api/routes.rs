//! Table of the routes of the admin port: handler, the right that each needs, and what the audit log records of it.
//!
//! The router is built from this table alone, so there is no route without a stated right.

use std::sync::Arc;

use axum::{
    Json, Router,
    middleware::from_fn_with_state,
    routing::{delete, get, patch, post, put},
};
use serde_json::Value;
use tidegate_protocol::Code;

mod openapi;

use super::{
    Api, Problem,
    access::{self, AdminGate, AdminRoute, Effect, RouteNeed},
    blocks, console,
    conversations::{history, lists, marks, newest, of_user, privacy, prune, unread},
    dev, groups,
    messages::{self, batch, edit, recall, signal},
    nodes,
    observe::{event_stream, events, flows, trace, webhooks},
    presence::{self, closed_rooms, person, rooms},
    problem::codes,
    reload, stats,
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

async fn describe() -> Result<Json<Value>, Problem> {
    description().map(Json).map_err(|error| Problem(Code::Internal, error))
}

/// Returns the description of all routes in OpenAPI 3.1.
///
/// # Errors
/// A route has no entry in `openapi.json`, or an entry has no route.
pub fn description() -> Result<Value, String> {
    openapi::describe(ROUTES)
}

routes! {
    get "/healthz" Open Query [] super::healthz;
    get "/livez" Open Query [] super::livez;
    get "/readyz" Open Query [] super::readyz;
    get "/metrics" Open Query [] super::metrics;
    get "/errors/{code}" Open Query [] codes::show;
    get "/v1/console" Open Query [] console::about;
    get "/v1/key" AnyKey Query [] access::own_key;
    get "/v1/keys" Operate Query [] access::keys::list;
    delete "/v1/keys/{id}" Operate Change [] access::keys::revoke;
    get "/v1/openapi.json" Read Query [] describe;
    get "/v1/stats/stream" Read Stream [] stats::stream;
    get "/v1/flows" Read Query [] flows::list;
    post "/v1/dev/token" Users Change ["user" "device"] dev::token;
    post "/v1/dev/cut" Users Change ["user" "device"] dev::cut;
    post "/v1/dev/abort" Operate Crash [] dev::abort;
    post "/v1/dev/forward" AnyKey Change ["node"] dev::forward::forward;
    post "/v1/drain" Operate Change [] super::begin_drain;
    delete "/v1/drain" Operate Change [] super::abort_drain;
    get "/v1/bans" Read Query [] blocks::bans::list;
    post "/v1/bans" Operate Change ["subject"] blocks::bans::ban;
    delete "/v1/bans/{subject}" Operate Change [] blocks::bans::lift;
    get "/v1/allow" Read Query [] blocks::bans::list_allowed;
    get "/v1/allow/{network}" Read Query [] blocks::bans::show_allowed;
    put "/v1/allow/{network}" Operate Change [] blocks::bans::allow;
    delete "/v1/allow/{network}" Operate Change [] blocks::bans::disallow;
    get "/v1/suspensions" Read Query [] blocks::suspensions::list;
    post "/v1/suspensions" Operate Change ["subject"] blocks::suspensions::suspend;
    delete "/v1/suspensions/{subject}" Operate Change [] blocks::suspensions::lift;
    get "/v1/evidence" Read Query [] blocks::evidence::list;
    delete "/v1/evidence/{subject}" Operate Change [] blocks::evidence::erase;
    post "/v1/evidence/apisix" Evidence Query [] blocks::apisix::report;
    get "/v1/subjects/{subject}" Read Query [] blocks::bans::subject;
    get "/v1/limits" Read Query [] nodes::limits::list;
    get "/v1/limits/{key}" Read Query [] nodes::limits::show;
    get "/v1/rules" Read Query [] nodes::rules::list;
    post "/v1/rules:validate" Read Query [] nodes::rules::validate;
    get "/v1/rules/{rule}" Read Query [] nodes::rules::show;
    put "/v1/rules/{rule}" Operate Change [] nodes::rules::put;
    delete "/v1/rules/{rule}" Operate Change [] nodes::rules::remove;
    get "/v1/nodes" Read Query [] nodes::list;
    post "/v1/reload" Operate Change [] reload::reload;
    post "/v1/weight" Operate Change [] nodes::set_weight;
    get "/v1/users/{user}/routes" Read Query [] nodes::where_is;
    get "/v1/users/{user}/presence" Read Query [] presence::of_user;
    get "/v1/users/{user}/blocks" Read Query [] blocks::list;
    get "/v1/users/{user}/blocks/{other}" Read Query [] blocks::show;
    put "/v1/users/{user}/blocks/{other}" Users Change [] blocks::block;
    delete "/v1/users/{user}/blocks/{other}" Users Change [] blocks::unblock;
    post "/v1/presence" Read Query [] presence::of_users;
    get "/v1/users/{user}/connections" Read Query [] presence::connections::of_user;
    delete "/v1/users/{user}/connections" Users Change ["device" "reconnect"] presence::connections::close_of_user;
    post "/v1/users/{user}/revoke" Users Change ["before" "device" "#tokenId"] presence::connections::revoke::revoke;
    get "/v1/users/{user}/revocations" Read Query [] presence::connections::revoke::of_user;
    delete "/v1/users/{user}/revocations" Operate Change [] presence::connections::revoke::clear;
    get "/v1/users/{user}/prio" Read Query [] presence::prio::show;
    put "/v1/users/{user}/prio" Users Change ["prio" "ttlMs"] presence::prio::set;
    delete "/v1/users/{user}/prio" Users Change [] presence::prio::remove;
    get "/v1/connections" Read Query [] presence::connections::list;
    get "/v1/connections/{id}" Read Query [] presence::connections::one;
    delete "/v1/connections/{id}" Users Change ["reconnect"] presence::connections::close_one;
    post "/v1/messages" Messages Change ["to" "from"] messages::send;
    post "/v1/messages/batch" Messages Change ["messages" "to" "from"] batch::send;
    post "/v1/messages/broadcast" Messages Change ["to" "from"] batch::broadcast;
    post "/v1/signals" Messages Change ["to" "from"] signal::send;
    patch "/v1/conversations/{conversation}/messages/{seq}" Messages Change ["by"] edit::edit;
    delete "/v1/conversations/{conversation}/messages/{seq}" Messages Change ["by"] recall::recall;
    get "/v1/trace" Read Query [] trace::steps;
    post "/v1/trace" Operate Change ["msg" "user"] trace::watch;
    get "/v1/events" Read Query [] events::follow;
    get "/v1/events/stream" Read Stream ["conversations" "users"] event_stream::stream;
    get "/v1/webhooks" Read Query [] webhooks::list;
    get "/v1/webhooks/{webhook}" Read Query [] webhooks::show;
    put "/v1/webhooks/{webhook}" Operate Change ["content"] webhooks::put;
    delete "/v1/webhooks/{webhook}" Operate Change [] webhooks::remove;
    post "/v1/webhooks/{webhook}/test" Operate Change [] webhooks::test;
    post "/v1/webhooks/{webhook}/pause" Operate Change [] webhooks::pause;
    post "/v1/webhooks/{webhook}/resume" Operate Change [] webhooks::resume;
    post "/v1/webhooks/{webhook}/replay" Operate Change ["from"] webhooks::replay;
    post "/v1/webhooks/{webhook}/secrets" Operate Change [] webhooks::add_secret;
    delete "/v1/webhooks/{webhook}/secrets/{secret}" Operate Change [] webhooks::remove_secret;
    get "/v1/webhooks/{webhook}/aside" Read Query [] webhooks::list_aside;
    post "/v1/webhooks/{webhook}/aside/{conversation}/{seq}/resend" Operate Change [] webhooks::resend;
    delete "/v1/webhooks/{webhook}/aside/{conversation}/{seq}" Operate Change [] webhooks::drop_aside;
    get "/v1/storms" Read Query [] groups::storms::list;
    get "/v1/storms/{group}" Read Query [] groups::storms::of_group;
    get "/v1/conversations" Read Query [] lists::list;
    post "/v1/conversations/heads" Read Query [] lists::heads;
    get "/v1/conversations/{conversation}" Read Query [] lists::one;
    get "/v1/conversations/{conversation}/messages" Content ContentRead ["as"] history::list;
    get "/v1/conversations/{conversation}/messages/{seq}" Content ContentRead ["as"] history::one;
    post "/v1/conversations/{conversation}/prune" Messages Change ["upTo"] prune::prune;
    get "/v1/users/{user}/conversations" Read ContentRead [] of_user::list;
    post "/v1/users/{user}/conversations/heads" Read Query [] of_user::heads;
    get "/v1/users/{user}/conversations/{conversation}" Read ContentRead [] of_user::one;
    patch "/v1/users/{user}/conversations/{conversation}" Messages Change ["readSeq" "minSeq" "maxSeq" "push"] marks::change;
    post "/v1/users/{user}/conversations/{conversation}/hide" Messages Change ["seqs"] marks::hide;
    get "/v1/users/{user}/messages" Content ContentRead [] newest::list;
    get "/v1/users/{user}/unread" Read Query [] unread::of_user;
    post "/v1/unread" Read Query [] unread::of_users;
    post "/v1/groups" Groups Change ["id" "owner" "members"] groups::create;
    get "/v1/groups" Read Query [] groups::lists::list;
    get "/v1/groups/{id}" Read Query [] groups::lists::show;
    patch "/v1/groups/{id}" Groups Change ["by"] groups::names::patch;
    delete "/v1/groups/{id}" Groups Change ["by"] groups::end;
    post "/v1/groups/{id}/members" Groups Change ["by" "add" "remove" "leave" "mute" "unmute"] groups::change_members;
    get "/v1/groups/{id}/members" Read Query [] groups::lists::members;
    get "/v1/groups/{id}/members/{user}" Read Query [] groups::lists::one;
    put "/v1/groups/{id}/members/{user}" Groups Change ["by" "role"] groups::member::add;
    patch "/v1/groups/{id}/members/{user}" Groups Change ["by" "role" "muted"] groups::member::patch;
    delete "/v1/groups/{id}/members/{user}" Groups Change ["by"] groups::member::remove;
    get "/v1/users/{user}" Read Query [] person::show;
    patch "/v1/users/{user}" Users Change ["push" "presence"] person::change;
    get "/v1/users/{user}/export" Content ContentRead [] privacy::export::export;
    delete "/v1/users/{user}/data" Users Change [] privacy::erase::erase;
    get "/v1/users/{user}/devices" Read Query [] person::devices;
    get "/v1/users/{user}/devices/{device}" Read Query [] person::device;
    delete "/v1/users/{user}/devices/{device}" Users Change [] person::forget;
    get "/v1/users/{user}/devices/{device}/chain" Read Query [] person::chain;
    delete "/v1/users/{user}/devices/{device}/chain" Users Change [] person::forget_chain;
    get "/v1/rooms" Read Query [] rooms::list;
    get "/v1/rooms/{room}" Read Query [] rooms::one;
    patch "/v1/rooms/{room}" Groups Change ["closed"] closed_rooms::change;
    get "/v1/closed-rooms" Read Query [] closed_rooms::list;
    get "/v1/rooms/{room}/members" Read Query [] rooms::members;
    delete "/v1/rooms/{room}/members/{user}" Groups Change ["device"] rooms::remove;
    get "/v1/users/{user}/groups" Read Query [] groups::lists::of_user;
    post "/v1/groups/{id}/roles" Groups Change ["by" "users" "role"] groups::change_roles;
    post "/v1/groups/{id}/settings" Groups Change ["by"] groups::change_settings;
    get "/v1/groups/{id}/storm" Read Query [] groups::storm_rules::show;
    put "/v1/groups/{id}/storm" Groups Change [] groups::storm_rules::set;
    delete "/v1/groups/{id}/storm" Groups Change [] groups::storm_rules::remove;
}

#[cfg(test)]
mod tests {
    use super::{super::dev::forward::FORWARDED, *};

    #[test]
    fn routes_that_may_change_something_need_a_scope_and_are_recorded() {
        for route in ROUTES {
            let is_change = matches!(route.effect, Effect::Change | Effect::Crash);
            assert!(!is_change || route.need != RouteNeed::Open, "{route:?}");
            let only_reads = [
                "/v1/presence",
                "/v1/rules:validate",
                "/v1/evidence/apisix",
                "/v1/conversations/heads",
                "/v1/users/{user}/conversations/heads",
                "/v1/unread",
            ]
            .contains(&route.path);
            assert!(route.method == "get" || is_change || only_reads, "{route:?}");
            assert!(route.method != "get" || !is_change, "{route:?}");
            assert!(!is_change || route.need != RouteNeed::Scope(Scope::Read), "{route:?}");
        }
        for (method, path, need) in FORWARDED {
            let route = ROUTES.iter().find(|it| it.path == path && it.method.eq_ignore_ascii_case(method));
            assert_eq!(route.map(|it| it.need), Some(need), "{method} {path}");
        }
        let open: Vec<_> = ROUTES.iter().filter(|it| it.need == RouteNeed::Open).map(|it| it.path).collect();
        assert_eq!(open, ["/healthz", "/livez", "/readyz", "/metrics", "/errors/{code}", "/v1/console"]);
    }
}
