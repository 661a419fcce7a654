//! Two honest clients that keep exchanging messages during an attack.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tidegate_protocol::codec::Wire;

use crate::support::{Client, Process, Stopwatch, ask, let_time_pass, text_of};

/// Limit of one message and its reply; generous, because the tests share two cores.
const REPLY_TIME_MAX: Duration = Duration::from_secs(3);

/// Pair of clients in a thread of its own.
pub(crate) struct Chat {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<usize>>,
}

impl Chat {
    /// Logs both in and starts the exchange.
    pub(crate) fn begin(node: &Process) -> Self {
        let mut pair = Pair::login(node);
        pair.round();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let talk = move || {
            while !stopped.load(Ordering::Relaxed) {
                pair.round();
                let_time_pass("a pause of the honest pair", Duration::from_millis(20));
            }
            pair.round();
            pair.rounds
        };
        Self { stop, thread: Some(thread::spawn(talk)) }
    }

    /// Ends the exchange: every message arrived in order, once, and in time.
    pub(crate) fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let rounds =
            self.thread.take().expect("ended once").join().expect("the honest pair is not disturbed");
        assert!(rounds >= 2, "they talked");
    }
}

/// Two honest clients.
pub(crate) struct Pair {
    /// Unique name: the devices replace no other, and no message id was used before.
    name: String,
    alice: Client,
    bob: Client,
    rounds: usize,
    watch: Stopwatch,
}

impl Pair {
    pub(crate) fn login(node: &Process) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("honest-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let alice = node.login(Wire::JsonLine, &format!("{name}-alice"), "phone");
        let bob = node.login(Wire::WsBinary, &format!("{name}-bob"), "laptop");
        Self { name, alice, bob, rounds: 0, watch: Stopwatch::start() }
    }

    /// Sends a message and its reply.
    pub(crate) fn round(&mut self) {
        let began = self.watch.elapsed();
        self.rounds += 1;
        let (ping, pong) = (format!("ping-{}", self.rounds), format!("pong-{}", self.rounds));
        exchange(&mut self.alice, &mut self.bob, &format!("{}-bob", self.name), &ping);
        exchange(&mut self.bob, &mut self.alice, &format!("{}-alice", self.name), &pong);
        let took = self.watch.elapsed().saturating_sub(began);
        assert!(took < REPLY_TIME_MAX, "round {} took {took:?}", self.rounds);
    }
}

fn exchange(from: &mut Client, to: &mut Client, user: &str, text: &str) {
    let seq = from.text(user, text, text);
    let push = to.expect_push();
    assert_eq!((text_of(&push), push.seq), (text, seq));
    to.say_as(0, ask::ack(&push.conversation, push.seq));
}
