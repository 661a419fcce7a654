//! Route of the admin port as the gate sees it: the right that it needs, and what is recorded of it.

use crate::keys::Scope;

/// Right that a route needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteNeed {
    /// None: the route needs no key.
    Open,
    /// Any key.
    AnyKey,
    /// Key with a scope.
    Scope(Scope),
}

/// What a request does, as far as its record and its end depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Reads only, and is not recorded.
    Query,
    /// Reads for as long as the caller likes, and not longer than its key is in force.
    Stream,
    /// Reads only, and is recorded if the key may read what people wrote.
    ContentRead,
    /// Changes something, and is recorded with its outcome.
    Change,
    /// Ends the process, and is recorded before.
    Crash,
}

/// Route of the admin port.
#[derive(Clone, Copy, Debug)]
pub struct AdminRoute {
    /// HTTP method, in lower case.
    pub method: &'static str,
    /// Path, with the names of its parameters in braces.
    pub path: &'static str,
    /// Right that the route needs.
    pub need: RouteNeed,
    /// Effect on state and records.
    pub effect: Effect,
    /// Fields of the body or the query that hold ids or times, which the audit log names. It names the short hash of a
    /// field with a leading `#`. Path parameters are named in any case.
    pub ids: &'static [&'static str],
}
