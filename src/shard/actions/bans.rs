//! Bans on open connections: those of new bans are closed by name, or found by a look through all connections.
//!
//! A login checks the bans after its connection is indexed, so that it is found either there or here.

use std::sync::Arc;

use tidegate_protocol::Code;

use crate::{
    bans::{BanRefusal, BanSubject},
    net::io::Io,
    shard::{Shard, conn::Conn},
};

/// Most connections that are looked at in one turn.
const SLOTS_PER_TURN: usize = 1_000;

/// Reason in the last frame.
const REASON: &str = "this user, device or network address is banned";

/// State of the look through all connections.
#[derive(Default)]
pub(in crate::shard) struct BanScan {
    /// Version of the bans that are applied, or that the scan applies.
    version: u64,
    next: usize,
    /// Connections that are left to look at.
    left: usize,
    /// Places of connections at the last turn: those that were added since then are looked at, too.
    slots: usize,
}

impl BanScan {
    /// Returns whether connections are left to look at.
    pub(in crate::shard) fn is_running(&self) -> bool {
        self.left > 0
    }
}

impl<I: Io> Shard<I> {
    /// Closes connections that new bans concern, at most as many as one turn may look at.
    pub(in crate::shard) fn apply_bans(&mut self) {
        let is_running = self.ban_scan.is_running();
        if !is_running && self.context.cluster.bans.version() == self.ban_scan.version {
            return;
        }
        let board = Arc::clone(&self.context.cluster.bans);
        let slots = self.conns.hot.len();
        if is_running {
            self.ban_scan.left += slots.saturating_sub(self.ban_scan.slots);
        }
        self.ban_scan.slots = slots;
        if board.version() != self.ban_scan.version {
            let (new, version) = board.new_since(self.ban_scan.version);
            self.ban_scan.version = version;
            for subject in &new.named {
                self.close_named(subject);
            }
            if new.is_wide {
                self.ban_scan.left = slots;
            }
        }
        for _ in 0..self.ban_scan.left.min(SLOTS_PER_TURN) {
            self.ban_scan.left -= 1;
            self.ban_scan.next = (self.ban_scan.next + 1) % self.conns.hot.len().max(1);
            self.close_if_banned(self.ban_scan.next as u32);
        }
    }

    fn close_named(&mut self, subject: &BanSubject) {
        let slots = match subject {
            BanSubject::Network(_) => Vec::new(),
            BanSubject::User(user) => self.slots_of_device(user, None),
            BanSubject::Device(user, device) => self.slots_of_device(user, Some(device)),
        };
        for slot in slots {
            self.close_if_banned(slot);
        }
    }

    fn close_if_banned(&mut self, slot: u32) {
        let Some(conn) = self.conns.peek(slot).filter(|conn| conn.is_open()) else { return };
        let Some(refusal) = self.ban_of(conn) else { return };
        let code = if conn.login.is_some() { Code::Kicked } else { Code::Banned };
        self.with_conn(slot, |shard, conn| {
            shard.buffers.reconnect = Some(refusal.reconnect());
            conn.session.close(code, REASON, &mut shard.buffers.actions);
            shard.act(conn);
            shard.buffers.reconnect = None;
            shard.flush(conn);
        });
        self.context.metrics.ban_closes.increment(1);
    }

    fn ban_of(&self, conn: &Conn) -> Option<BanRefusal> {
        let board = &self.context.cluster.bans;
        match conn.login.as_deref() {
            Some(login) => board.refusal_of_login(conn.address, &login.route.user, &login.route.device),
            None => board.refusal_of_address(conn.address),
        }
    }

    /// Refuses the login of a connection that has just been indexed, if it was banned meanwhile: an earlier look through
    /// the connections did not find it.
    pub(in crate::shard) fn refuse_if_banned(&mut self, conn: &mut Conn) {
        if !conn.is_open() || conn.login.is_none() {
            return;
        }
        if let Some(refusal) = self.ban_of(conn) {
            self.refuse_banned(conn, refusal);
            self.act(conn);
        }
    }

    /// Refuses a login because of a ban.
    pub(in crate::shard) fn refuse_banned(&mut self, conn: &mut Conn, refusal: BanRefusal) {
        self.context.metrics.ban_refusals.increment(1);
        self.context.metrics.login_refusals.increment(1);
        self.buffers.reconnect = Some(refusal.reconnect());
        conn.session.login_refused(Code::Banned, "", &mut self.buffers.actions);
    }
}
