//! Mailbox of a shard, and the handle with which other threads post to it.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Waker,
};

use tokio::sync::{Semaphore, mpsc};

use super::{Lane, MAILBOX_MAX, Mail, ROOM_BYTES_DIVISOR, ROOM_MAILS_MAX, URGENT_MAX};
use crate::priorities::class_share;

/// Handle with which other threads post to one shard.
#[derive(Clone)]
pub struct ShardHandle {
    common: BoundedSender,
    rooms: BoundedSender,
    urgent: mpsc::Sender<Mail>,
    waker: Waker,
    awake: Arc<AtomicBool>,
    conns: Arc<AtomicUsize>,
    lingering: Arc<AtomicUsize>,
}

/// Receiving side of a [`ShardHandle`], owned by the shard.
pub struct Mailbox {
    common: BoundedReceiver,
    rooms: BoundedReceiver,
    urgent: mpsc::Receiver<Mail>,
    awake: Arc<AtomicBool>,
    /// Number of the shard's connections, from which the acceptor picks the least loaded shard.
    pub conns: Arc<AtomicUsize>,
    /// Number of these that are sent everything and only linger.
    pub lingering: Arc<AtomicUsize>,
}

/// Sending side of a lane that is bounded in mails and in bytes.
#[derive(Clone)]
struct BoundedSender {
    mails: mpsc::Sender<(u32, Mail)>,
    /// Bytes that still fit.
    capacity: Arc<Semaphore>,
    bytes_max: u32,
}

/// Receiving side of a [`BoundedSender`].
struct BoundedReceiver {
    mails: mpsc::Receiver<(u32, Mail)>,
    capacity: Arc<Semaphore>,
}

fn bounded_lane(mails_max: usize, bytes_max: usize) -> (BoundedSender, BoundedReceiver) {
    let bytes_max = u32::try_from(bytes_max).unwrap_or(u32::MAX);
    let capacity = Arc::new(Semaphore::new(bytes_max as usize));
    let (sender, mails) = mpsc::channel(mails_max);
    (
        BoundedSender { mails: sender, capacity: Arc::clone(&capacity), bytes_max },
        BoundedReceiver { mails, capacity },
    )
}

impl BoundedSender {
    async fn post(&self, mail: Mail) -> io::Result<()> {
        let charge = self.charge(mail.weight());
        let permit = self.capacity.acquire_many(charge).await.map_err(|_| stopped())?;
        let slot = self.mails.reserve().await.map_err(|_| stopped())?;
        permit.forget();
        slot.send((charge, mail));
        Ok(())
    }

    fn try_post(&self, mail: Mail) -> bool {
        let charge = self.charge(mail.weight());
        // Higher classes may use what lower ones must leave free, in bytes and in mails.
        let (class, mails_max) = (mail.class(), self.mails.max_capacity());
        let reserved_mails = mails_max - class_share(mails_max, class);
        if reserved_mails > 0 && self.mails.capacity() <= reserved_mails {
            return false;
        }
        let reserved = self.bytes_max - class_share(self.bytes_max as usize, class) as u32;
        let needed = charge.saturating_add(reserved).min(self.bytes_max) as usize;
        if reserved > 0 && self.capacity.available_permits() < needed {
            return false;
        }
        let Ok(permit) = self.capacity.try_acquire_many(charge) else { return false };
        if self.mails.try_send((charge, mail)).is_err() {
            return false;
        }
        permit.forget();
        true
    }

    /// Returns the bytes to charge for a mail; one that is larger than the lane is charged all of it.
    fn charge(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.bytes_max)
    }
}

impl BoundedReceiver {
    fn take(&mut self) -> Option<Mail> {
        let (charge, mail) = self.mails.try_recv().ok()?;
        self.capacity.add_permits(charge as usize);
        Some(mail)
    }
}

impl Drop for BoundedReceiver {
    /// Fails the callers that wait for the capacity of a stopped shard.
    fn drop(&mut self) {
        self.capacity.close();
    }
}

/// Creates a mailbox of at most `bytes_max` bytes, and a part of that for room frames in addition; a post wakes `waker`
/// if the shard sleeps.
pub fn mailbox(waker: Waker, bytes_max: usize) -> (ShardHandle, Mailbox) {
    let (common_sender, common) = bounded_lane(MAILBOX_MAX, bytes_max);
    let (rooms_sender, rooms) = bounded_lane(ROOM_MAILS_MAX, bytes_max / ROOM_BYTES_DIVISOR);
    let (urgent_sender, urgent) = mpsc::channel(URGENT_MAX);
    let (awake, conns, lingering): (Arc<AtomicBool>, Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
    let handle = ShardHandle {
        common: common_sender,
        rooms: rooms_sender,
        urgent: urgent_sender,
        waker,
        awake: Arc::clone(&awake),
        conns: Arc::clone(&conns),
        lingering: Arc::clone(&lingering),
    };
    (handle, Mailbox { common, rooms, urgent, awake, conns, lingering })
}

impl ShardHandle {
    /// Waits for capacity, then posts.
    ///
    /// # Errors
    /// Fails if the shard has stopped. That happens only when the node stops, so callers may ignore the error.
    pub async fn post(&self, mail: Mail) -> io::Result<()> {
        match mail.lane() {
            Lane::Urgent => self.urgent.send(mail).await.map_err(|_| stopped())?,
            Lane::Rooms => self.rooms.post(mail).await?,
            Lane::Common => self.common.post(mail).await?,
        }
        self.wake();
        Ok(())
    }

    /// Posts if the mailbox has capacity now; returns whether it did.
    pub fn try_post(&self, mail: Mail) -> bool {
        let is_posted = match mail.lane() {
            Lane::Urgent => self.urgent.try_send(mail).is_ok(),
            Lane::Rooms => self.rooms.try_post(mail),
            Lane::Common => self.common.try_post(mail),
        };
        self.wake();
        is_posted
    }

    /// Returns whether `bytes` of common mail fit now; mail that is posted meanwhile may use the capacity.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.common.capacity.available_permits() >= self.common.charge(bytes) as usize
    }

    /// Returns whether at least half of what room frames may take is free.
    pub fn has_half_for_rooms(&self) -> bool {
        let (mails, bytes) = (self.rooms.mails.capacity(), self.rooms.capacity.available_permits());
        2 * mails >= self.rooms.mails.max_capacity() && 2 * bytes >= self.rooms.bytes_max as usize
    }

    /// Returns the number of the shard's connections.
    pub fn conns(&self) -> usize {
        self.conns.load(Ordering::Relaxed)
    }

    /// Returns the number of connections that are not sent everything yet, their `Close` included.
    pub fn unfinished(&self) -> usize {
        self.conns().saturating_sub(self.lingering.load(Ordering::Relaxed))
    }

    /// Counts a connection that is about to be queued; the shard subtracts it when it closes.
    pub fn count_in(&self) {
        self.conns.fetch_add(1, Ordering::Relaxed);
    }

    /// Wakes the shard if it sleeps, after something was put into one of its queues.
    pub(crate) fn wake(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
        if !self.awake.swap(true, Ordering::AcqRel) {
            self.waker.wake_by_ref();
        }
    }
}

impl Mailbox {
    /// Takes the next urgent mail, if any.
    pub fn take_urgent(&mut self) -> Option<Mail> {
        self.urgent.try_recv().ok()
    }

    /// Takes the next mail that holds no room frames, if any; urgent mail first.
    pub fn take(&mut self) -> Option<Mail> {
        self.take_urgent().or_else(|| self.common.take())
    }

    /// Takes the next mail with room frames, or with losses of such, if any.
    pub fn take_room_frames(&mut self) -> Option<Mail> {
        self.rooms.take()
    }

    /// Marks the shard as asleep; call it before the last check of the mailbox.
    pub fn about_to_sleep(&self) {
        self.awake.store(false, Ordering::Release);
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Marks the shard as awake; until [`Self::about_to_sleep`], posting needs no system call.
    pub fn awoke(&self) {
        self.awake.store(true, Ordering::Release);
    }

    /// Returns whether no mail waits.
    pub fn is_empty(&self) -> bool {
        self.common.mails.is_empty() && self.rooms.mails.is_empty() && self.urgent.is_empty()
    }
}

fn stopped() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "shard has stopped")
}
