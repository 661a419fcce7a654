//! Routes of the shard's connections: re-asserted after a loss, and renewed with a newer epoch.
//!
//! An epoch is renewed for a connection whose epoch is below one that the ledger has seen from its device. Such a
//! connection was either replaced and has not learned of it, or it logged in after the clock of the routes was set
//! back. The first fails the compare-and-set of its route and is closed with `REPLACED`. The second continues with a
//! newer epoch: its void sends are answered `UNKNOWN`, and the client resends them once under the new epoch. A chained
//! connection is closed with `RESYNC` instead, because a chain's numbers belong to its epoch (ADR 9).

use std::sync::Arc;

use tidegate_protocol::{Code, machine::session::SubmitAnswer};

use super::{Shard, conn::Conn};
use crate::{
    log_limit::log_limited,
    login,
    mail::{ConnKey, Mail, Outdated, Reassert, Slice},
    net::io::Io,
    routes::{Route, RoutesError},
};

/// Most slots that are read for one mail.
const SLOTS_PER_MAIL: u32 = 4_096;

/// Most routes that one mail lists.
const ROUTES_PER_MAIL: usize = 500;

impl<I: Io> Shard<I> {
    /// Handles an order to re-assert routes after a loss: lists this shard's routes, or closes the connections whose
    /// routes are not current.
    pub(super) fn on_reassert(&mut self, order: Reassert) {
        match order {
            // The caller stops waiting only when the node stops.
            Reassert::Collect(from, reply) => drop(reply.send(self.routes_from(from))),
            Reassert::Settle(results) => {
                for (key, route, is_current) in results {
                    let conn_slot = self.conns.find(key).filter(|slot| {
                        let login = self.conns.peek(*slot).and_then(|conn| conn.login.as_deref());
                        login.is_some_and(|login| login.route == route)
                    });
                    match (conn_slot, is_current) {
                        (Some(slot), false) => self.close_now(slot, Code::Replaced),
                        // The connection closed before its row was re-asserted, so the row has no owner.
                        (None, true) => self.unregister(route),
                        (Some(_), true) | (None, false) => {}
                    }
                }
            }
        }
    }

    fn routes_from(&self, from: u32) -> Slice {
        let slots = u32::try_from(self.conns.hot.len()).unwrap_or(u32::MAX);
        let (mut rows, mut slot) = (Vec::new(), from);
        while slot < slots && slot - from < SLOTS_PER_MAIL && rows.len() < ROUTES_PER_MAIL {
            if let Some(conn) = self.conns.peek(slot)
                && let Some(login) = conn.login.as_deref()
            {
                rows.push((conn.key, login.route.clone()));
            }
            slot += 1;
        }
        Slice { rows, next: (slot < slots).then_some(slot) }
    }

    /// Handles a void send: renews the epoch, or answers the send if the epoch is already newer.
    pub(super) fn on_outdated(&mut self, conn: &mut Conn, it: Outdated) {
        let Some(login) = conn.login.as_mut().filter(|_| conn.ending.is_none()) else { return };
        if login.route.token.epoch > it.newest {
            // The send preceded the renewal.
            return self.answer_void(conn, it.ticket);
        }
        login.outdated.push(it.ticket);
        if login.outdated.len() > 1 {
            return;
        }
        let (key, route) = (conn.key, login.route.clone());
        log_limited!(info, user = %route.user, newest = it.newest, "send is void: ledger has a newer epoch; renewing");
        let (cluster, shards) = (Arc::clone(&self.context.cluster), Arc::clone(&self.context.handles));
        let work = login::renew(cluster, route, it.newest, shards);
        if let Some(done) = self.context.ask(work, move |done| Mail::EpochRenewed(key, done)) {
            self.on_renewed(conn, done);
        }
    }

    /// Handles the outcome of an epoch renewal, and answers the void sends.
    pub(super) fn on_renewed(&mut self, conn: &mut Conn, done: Result<Route, RoutesError>) {
        let Some(login) = conn.login.as_mut().filter(|_| conn.ending.is_none()) else {
            return self.remove_unused_route(done);
        };
        let tickets = std::mem::take(&mut login.outdated);
        match done {
            Ok(route) => {
                conn.session.epoch_is(route.token.epoch);
                login.route = route;
                tickets.into_iter().for_each(|ticket| self.answer_void(conn, ticket));
            }
            Err(RoutesError::NotCurrent(Some(_))) => {
                conn.session.close(Code::Replaced, "", &mut self.buffers.actions);
            }
            Err(error) => {
                tracing::debug!(%error, "failed to renew an epoch; the client must reconnect");
                tickets.into_iter().for_each(|ticket| self.answer(conn, ticket, SubmitAnswer::AppendFailed));
            }
        }
        self.act(conn);
    }

    /// Removes the renewed route of a connection that has closed: the close removed only the older one.
    pub(super) fn remove_unused_route(&self, done: Result<Route, RoutesError>) {
        if let Ok(route) = done {
            self.unregister(route);
        }
    }

    /// Handles the void sends of several connections.
    pub(super) fn take_outdated(&mut self, outdated: Vec<Outdated>) {
        for it in outdated {
            if let Some(slot) = self.conns.find(it.key) {
                self.with_conn(slot, |shard, conn| {
                    shard.on_outdated(conn, it);
                    shard.act(conn);
                    shard.resume(conn);
                    shard.flush(conn);
                });
            }
        }
    }

    /// Handles [`Mail::EpochRenewed`].
    pub(super) fn take_renewed(&mut self, key: ConnKey, done: Result<Route, RoutesError>) {
        match self.conns.find(key) {
            Some(slot) => self.with_conn(slot, |shard, conn| {
                shard.on_renewed(conn, done);
                shard.resume(conn);
                shard.flush(conn);
            }),
            None => self.remove_unused_route(done),
        }
    }

    /// Answers a void send: the client resends it, or, with a chain, reconnects.
    fn answer_void(&mut self, conn: &mut Conn, ticket: u64) {
        let answer =
            if conn.session.has_chain() { SubmitAnswer::AppendFailed } else { SubmitAnswer::Unknown };
        self.answer(conn, ticket, answer);
    }

    fn answer(&mut self, conn: &mut Conn, ticket: u64, answer: SubmitAnswer) {
        let limits = &conn.settings.limits;
        conn.session.answered(ticket, answer, limits, self.now, &mut self.buffers.actions);
    }
}
