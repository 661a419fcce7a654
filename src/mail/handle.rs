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

use super::{MAILBOX_MAX, Mail, URGENT_MAX};

/// Handle with which other threads post to one shard.
#[derive(Clone)]
pub struct ShardHandle {
    mailbox: mpsc::Sender<(u32, Mail)>,
    urgent: mpsc::Sender<Mail>,
    /// Bytes that still fit into the mailbox.
    capacity: Arc<Semaphore>,
    bytes_max: u32,
    waker: Waker,
    awake: Arc<AtomicBool>,
    conns: Arc<AtomicUsize>,
    lingering: Arc<AtomicUsize>,
}

/// Receiving side of a [`ShardHandle`], owned by the shard.
pub struct Mailbox {
    mails: mpsc::Receiver<(u32, Mail)>,
    urgent: mpsc::Receiver<Mail>,
    capacity: Arc<Semaphore>,
    awake: Arc<AtomicBool>,
    /// Number of the shard's connections, from which the acceptor picks the least loaded shard.
    pub conns: Arc<AtomicUsize>,
    /// Number of these that are sent everything and only linger.
    pub lingering: Arc<AtomicUsize>,
}

/// Creates a mailbox of at most `bytes_max` bytes; a post wakes `waker` if the shard sleeps.
pub fn mailbox(waker: Waker, bytes_max: usize) -> (ShardHandle, Mailbox) {
    let bytes_max = u32::try_from(bytes_max).unwrap_or(u32::MAX);
    let capacity = Arc::new(Semaphore::new(bytes_max as usize));
    let (sender, mails) = mpsc::channel(MAILBOX_MAX);
    let (urgent_sender, urgent) = mpsc::channel(URGENT_MAX);
    let (awake, conns, lingering): (Arc<AtomicBool>, Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
    let handle = ShardHandle {
        mailbox: sender,
        urgent: urgent_sender,
        capacity: Arc::clone(&capacity),
        bytes_max,
        waker,
        awake: Arc::clone(&awake),
        conns: Arc::clone(&conns),
        lingering: Arc::clone(&lingering),
    };
    (handle, Mailbox { mails, urgent, capacity, awake, conns, lingering })
}

impl ShardHandle {
    /// Waits for capacity, then posts.
    ///
    /// # Errors
    /// Fails if the shard has stopped. That happens only when the node stops, so callers may ignore the error.
    pub async fn post(&self, mail: Mail) -> io::Result<()> {
        if mail.is_urgent() {
            self.urgent.send(mail).await.map_err(|_| stopped())?;
            self.wake();
            return Ok(());
        }
        let charge = self.charge(mail.weight());
        let permit = self.capacity.acquire_many(charge).await.map_err(|_| stopped())?;
        let slot = self.mailbox.reserve().await.map_err(|_| stopped())?;
        permit.forget();
        slot.send((charge, mail));
        self.wake();
        Ok(())
    }

    /// Posts if the mailbox has capacity now; returns whether it did.
    pub fn try_post(&self, mail: Mail) -> bool {
        if mail.is_urgent() {
            let is_posted = self.urgent.try_send(mail).is_ok();
            self.wake();
            return is_posted;
        }
        let charge = self.charge(mail.weight());
        let Ok(permit) = self.capacity.try_acquire_many(charge) else { return false };
        if self.mailbox.try_send((charge, mail)).is_err() {
            return false;
        }
        permit.forget();
        self.wake();
        true
    }

    /// Returns whether `bytes` fit now; mail that is posted meanwhile may use the capacity.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.capacity.available_permits() >= self.charge(bytes) as usize
    }

    /// Returns the bytes to charge for a mail; one that is larger than the mailbox is charged all of it.
    fn charge(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.bytes_max)
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

    /// Takes the next mail, if any; urgent mail first.
    pub fn take(&mut self) -> Option<Mail> {
        if let Some(mail) = self.take_urgent() {
            return Some(mail);
        }
        let (charge, mail) = self.mails.try_recv().ok()?;
        self.capacity.add_permits(charge as usize);
        Some(mail)
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
        self.mails.is_empty() && self.urgent.is_empty()
    }
}

impl Drop for Mailbox {
    /// Fails the callers that wait for the capacity of a stopped shard.
    fn drop(&mut self) {
        self.capacity.close();
    }
}

fn stopped() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "shard has stopped")
}
