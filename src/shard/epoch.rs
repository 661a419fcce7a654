//! A connection whose epoch is below one that the ledger has seen of its device takes a newer one (DESIGN 6.3).
//!
//! That is a connection which was replaced and does not know yet, or one that logged in after the clock of the routes was set
//! back. The first loses its route's compare-and-set and ends `REPLACED`. The second goes on above: what was void is told
//! *unknown*, so its client sends it again, once, under the newer epoch; a chain begins anew instead (`RESYNC`), because its
//! numbers belong to an epoch.

use std::sync::Arc;

use tidegate_protocol::{Code, machine::session::Answer};

use super::{Shard, conn::Conn};
use crate::{
    inline, login,
    mail::{ConnKey, Mail, Outdated},
    routes::{Route, RoutesError},
};

impl Shard {
    /// A send of this connection is void.
    pub(super) fn on_outdated(&mut self, conn: &mut Conn, it: Outdated) {
        let Some(who) = conn.who.as_mut().filter(|_| conn.ending.is_none()) else { return };
        if who.route.token.epoch > it.newest {
            // It was sent before the epoch was renewed.
            return self.say_again(conn, it.ticket);
        }
        who.outdated.push(it.ticket);
        if who.outdated.len() > 1 {
            return;
        }
        let (key, route) = (conn.key, who.route.clone());
        tracing::info!(user = %route.user, newest = it.newest, "the ledger has seen a newer epoch of a device");
        let (ports, shards) = (Arc::clone(&self.context.ports), Arc::clone(&self.context.handles));
        let work = login::renew(ports, route, it.newest, shards);
        let home = self.context.own_handle();
        let done = inline::run(&self.context.runtime, work, move |done| {
            Box::pin(async move {
                if let Some(home) = home {
                    // The shard is gone only when the node stops.
                    home.post(Mail::Renewed(key, done)).await.ok();
                }
            })
        });
        if let Some(done) = done {
            self.on_renewed(conn, done);
        }
    }

    /// Its route has a newer epoch, or not.
    pub(super) fn on_renewed(&mut self, conn: &mut Conn, done: Result<Route, RoutesError>) {
        let Some(who) = conn.who.as_mut().filter(|_| conn.ending.is_none()) else {
            return self.renewed_for_nobody(done);
        };
        let tickets = std::mem::take(&mut who.outdated);
        match done {
            Ok(route) => {
                conn.session.epoch_is(route.token.epoch);
                who.route = route;
                tickets.into_iter().for_each(|ticket| self.say_again(conn, ticket));
            }
            Err(RoutesError::NotCurrent(Some(_))) => {
                conn.session.close(Code::Replaced, "", &mut self.scratch.actions);
            }
            Err(error) => {
                tracing::debug!(%error, "an epoch was not renewed: the client comes back for one");
                tickets.into_iter().for_each(|ticket| self.answer(conn, ticket, Answer::AppendFailed));
            }
        }
        self.act(conn);
    }

    /// The connection went meanwhile, with the route that it knew.
    pub(super) fn renewed_for_nobody(&self, done: Result<Route, RoutesError>) {
        if let Ok(route) = done {
            self.unregister(route);
        }
    }

    /// The void of several connections, each through its session.
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

    /// The answer to [`Mail::Renewed`].
    pub(super) fn take_renewed(&mut self, key: ConnKey, done: Result<Route, RoutesError>) {
        match self.conns.find(key) {
            Some(slot) => self.with_conn(slot, |shard, conn| {
                shard.on_renewed(conn, done);
                shard.resume(conn);
                shard.flush(conn);
            }),
            None => self.renewed_for_nobody(done),
        }
    }

    fn say_again(&mut self, conn: &mut Conn, ticket: u64) {
        let answer = if conn.session.has_chain() { Answer::AppendFailed } else { Answer::Unknown };
        self.answer(conn, ticket, answer);
    }

    fn answer(&mut self, conn: &mut Conn, ticket: u64, answer: Answer) {
        let limits = &self.context.limits;
        conn.session.answered(ticket, answer, limits, self.now, &mut self.scratch.actions);
    }
}
