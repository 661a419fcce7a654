//! When turns begin, and who is in them: no server, on a clock that stands still.

use std::cell::RefCell;

use futures_util::future::join_all;
use tokio::time::{advance, sleep};

use super::*;
use crate::{
    config,
    store::{PostgresStore, postgres::connect::Source},
};

/// An errand of this size that takes so long; one of no size at all panics.
struct Probe(usize, Duration);

/// Turns: when each began, and the sizes in it.
type Turns = Vec<(Duration, Vec<usize>)>;

thread_local! {
    /// Each test has a thread of its own.
    static GATHER: &'static Gather<Probe> = Box::leak(Box::default());
    static TURNS: RefCell<Turns> = const { RefCell::new(Vec::new()) };
    static BEGAN: Instant = Instant::now();
}

impl Errand for Probe {
    type Answer = usize;
    const FLIGHTS: usize = 2;
    const BATCH: usize = 10;
    const PATIENCE: Duration = Duration::from_millis(25);

    fn size(&self) -> usize {
        self.0
    }

    fn gather(_: &Core) -> &Gather<Self> {
        GATHER.with(|it| *it)
    }

    async fn turn(_: &Core, errands: &[&Self]) -> Result<Vec<usize>, StoreError> {
        let sizes: Vec<usize> = errands.iter().map(|it| it.0).collect();
        assert!(!sizes.contains(&0), "as the test wants");
        TURNS.with_borrow_mut(|turns| turns.push((now(), sizes.clone())));
        sleep(errands.iter().map(|it| it.1).max().unwrap_or_default()).await;
        Ok(sizes)
    }
}

fn now() -> Duration {
    BEGAN.with(Instant::elapsed)
}

fn turns() -> Turns {
    TURNS.take()
}

fn core() -> Arc<Core> {
    now();
    let config =
        config::Postgres { url: "postgres://nobody@127.0.0.1:1/none".to_owned(), ..Default::default() };
    let source = Source::new(&config).unwrap();
    PostgresStore::over(&source, &config).unwrap().core
}

/// Comes after that time, and is answered.
async fn comes(core: &Arc<Core>, after_ms: u64, size: usize, takes_ms: u64) {
    sleep(ms(after_ms)).await;
    assert_eq!(send(core, Probe(size, ms(takes_ms))).await, Ok(size));
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[tokio::test(start_paused = true)]
async fn who_comes_alone_goes_at_once_and_the_others_when_the_turn_before_them_is_over() {
    let core = core();
    join_all([0, 4, 9, 22, 50].map(|at| comes(&core, at, 1, 10))).await;
    let one = |n: usize| vec![1; n];
    // At 22 ms a flight still waits for the end of the first turn, which is over.
    assert_eq!(turns(), [(ms(0), one(1)), (ms(10), one(2)), (ms(22), one(1)), (ms(50), one(1))]);
}

#[tokio::test(start_paused = true)]
async fn those_behind_a_turn_that_takes_long_go_together_after_a_while() {
    let core = core();
    join_all([0, 4, 9, 24, 26, 49, 90].map(|at| comes(&core, at, 1, 60))).await;
    let one = |n: usize| vec![1; n];
    assert_eq!(turns(), [(ms(0), one(1)), (ms(25), one(3)), (ms(60), one(2)), (ms(90), one(1))]);
}

#[tokio::test(start_paused = true)]
async fn what_is_enough_for_a_turn_does_not_wait() {
    let core = core();
    let coming = [(0, 1), (1, 4), (2, 4), (3, 6), (4, 9), (5, 1)];
    join_all(coming.map(|(at, size)| comes(&core, at, size, 60))).await;
    // At 3 ms there is enough; what did not fit goes with a second flight, and then both are under way.
    let sizes = |sizes: &[usize]| sizes.to_vec();
    let wanted =
        [(ms(0), sizes(&[1])), (ms(3), sizes(&[4, 4])), (ms(60), sizes(&[6])), (ms(63), sizes(&[9, 1]))];
    assert_eq!(turns(), wanted);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_takes_long_holds_nobody_who_was_not_in_it() {
    let core = core();
    join_all([(0, 1_000), (30, 1), (40, 1), (200, 1)].map(|(at, takes)| comes(&core, at, 1, takes))).await;
    let began: Vec<_> = turns().into_iter().map(|(at, _)| at).collect();
    assert_eq!(began, [ms(0), ms(30), ms(55), ms(200)]);
}

#[tokio::test(start_paused = true)]
async fn who_is_in_a_turn_that_ends_before_its_time_hears_and_the_others_go_on() {
    let core = core();
    let lost = async {
        sleep(ms(1)).await;
        send(&core, Probe(0, ms(1))).await
    };
    // It waits when it is given up, and nobody is behind it.
    let given_up = async {
        sleep(ms(26)).await;
        tokio::time::timeout(ms(5), send(&core, Probe(1, ms(1)))).await.is_err()
    };
    let (_, lost, given_up) = tokio::join!(comes(&core, 0, 3, 50), lost, given_up);
    assert!(matches!(lost, Err(StoreError::Unknown(_))) && given_up, "{lost:?}");
    advance(ms(100)).await;
    for _ in 0..3 {
        let began = now();
        assert_eq!(send(&core, Probe(2, ms(1))).await, Ok(2));
        assert!(now() - began <= ms(2));
    }
    let sizes: Vec<_> = turns().into_iter().map(|(_, sizes)| sizes).collect();
    assert_eq!(sizes, [[3], [2], [2], [2]]);
}
