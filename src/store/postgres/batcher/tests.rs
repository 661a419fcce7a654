//! Tests of batch starts and contents, without a server and on a paused clock.

use std::cell::RefCell;

use futures_util::future::join_all;
use tokio::time::{advance, sleep};

use super::*;
use crate::{
    config,
    store::{PostgresStore, postgres::connect::Source},
};

/// Query with a size and a duration; a size of 0 panics.
struct Probe(usize, Duration);

/// Start time and query sizes of each batch.
type Batches = Vec<(Duration, Vec<usize>)>;

thread_local! {
    /// Batcher of the test; each test has its own thread.
    static BATCHER: &'static Batcher<Probe> = Box::leak(Box::default());
    static BATCHES: RefCell<Batches> = const { RefCell::new(Vec::new()) };
    static START: Instant = Instant::now();
}

impl BatchedQuery for Probe {
    type Reply = usize;
    const TASKS_MAX: usize = 2;
    const BATCH_SIZE_MAX: usize = 10;
    const BATCH_DELAY_MAX: Duration = Duration::from_millis(25);

    fn size(&self) -> usize {
        self.0
    }

    fn batcher(_: &Core) -> &Batcher<Self> {
        BATCHER.with(|it| *it)
    }

    async fn execute(_: &Core, batch: &[&Self]) -> Result<Vec<usize>, StoreError> {
        let sizes: Vec<usize> = batch.iter().map(|it| it.0).collect();
        assert!(!sizes.contains(&0), "panic planned by the test of batches");
        BATCHES.with_borrow_mut(|batches| batches.push((now(), sizes.clone())));
        sleep(batch.iter().map(|it| it.1).max().unwrap_or_default()).await;
        Ok(sizes)
    }
}

fn now() -> Duration {
    START.with(Instant::elapsed)
}

fn batches() -> Batches {
    BATCHES.take()
}

fn core() -> Arc<Core> {
    now();
    let config =
        config::PostgresConfig { url: "postgres://nobody@127.0.0.1:1/none".to_owned(), ..Default::default() };
    let source = Source::new(&config).unwrap();
    PostgresStore::over(&source, &config).unwrap().core
}

/// Sends a query after a delay and expects its reply.
async fn send_after(core: &Arc<Core>, after_ms: u64, size: usize, takes_ms: u64) {
    sleep(ms(after_ms)).await;
    assert_eq!(send(core, Probe(size, ms(takes_ms))).await, Ok(size));
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[tokio::test(start_paused = true)]
async fn lone_query_is_sent_at_once_and_others_after_the_batch() {
    let core = core();
    join_all([0, 4, 9, 22, 50].map(|at| send_after(&core, at, 1, 10))).await;
    let one = |n: usize| vec![1; n];
    // At 22 ms a task still waits for the end of the first batch, which has ended already.
    assert_eq!(batches(), [(ms(0), one(1)), (ms(10), one(2)), (ms(22), one(1)), (ms(50), one(1))]);
}

#[tokio::test(start_paused = true)]
async fn queries_behind_a_slow_batch_are_sent_together() {
    let core = core();
    join_all([0, 4, 9, 24, 26, 49, 90].map(|at| send_after(&core, at, 1, 60))).await;
    let one = |n: usize| vec![1; n];
    assert_eq!(batches(), [(ms(0), one(1)), (ms(25), one(3)), (ms(60), one(2)), (ms(90), one(1))]);
}

#[tokio::test(start_paused = true)]
async fn full_batch_does_not_wait() {
    let core = core();
    let arrivals = [(0, 1), (1, 4), (2, 4), (3, 6), (4, 9), (5, 1)];
    join_all(arrivals.map(|(at, size)| send_after(&core, at, size, 60))).await;
    // At 3 ms there is enough for a batch. The rest goes to a second task, and then both tasks have a batch in flight.
    let sizes = |sizes: &[usize]| sizes.to_vec();
    let wanted =
        [(ms(0), sizes(&[1])), (ms(3), sizes(&[4, 4])), (ms(60), sizes(&[6])), (ms(63), sizes(&[9, 1]))];
    assert_eq!(batches(), wanted);
}

#[tokio::test(start_paused = true)]
async fn slow_batch_does_not_block_later_queries() {
    let core = core();
    join_all([(0, 1_000), (30, 1), (40, 1), (200, 1)].map(|(at, takes)| send_after(&core, at, 1, takes)))
        .await;
    let starts: Vec<_> = batches().into_iter().map(|(at, _)| at).collect();
    assert_eq!(starts, [ms(0), ms(30), ms(55), ms(200)]);
}

#[tokio::test(start_paused = true)]
async fn s76_panic_goes_on_in_the_caller_of_its_query_and_fails_no_others() {
    let core = core();
    let panics = supervised::panics();
    let panicking = async |after| {
        sleep(ms(after)).await;
        contained(send(&core, Probe(0, ms(1)))).await
    };
    // The first batch is in flight when the next three queries come, which share one.
    let neighbours = join_all([2, 3].map(|at| send_after(&core, at, 2, 1)));
    let (_, panicked, _) = tokio::join!(send_after(&core, 0, 3, 20), panicking(1), neighbours);
    assert!(panicked.is_err());
    assert!(panicking(0).await.is_err(), "alone in its batch");
    let sizes: Vec<_> = batches().into_iter().map(|(_, sizes)| sizes).collect();
    assert_eq!(sizes, [[3], [2], [2]], "the neighbours are executed alone");
    for _ in 0..3 {
        let start = now();
        assert_eq!(send(&core, Probe(2, ms(1))).await, Ok(2));
        assert!(now() - start <= ms(2));
    }
    assert!(!panics.borrow().iter().any(|it| it.contains("planned by the test of batches")));
}

#[tokio::test(start_paused = true)]
async fn query_whose_caller_gives_up_is_not_executed() {
    let core = core();
    // It is still waiting when its caller gives up, and no query follows it.
    let abandoned = async {
        sleep(ms(1)).await;
        tokio::time::timeout(ms(5), send(&core, Probe(1, ms(1)))).await.is_err()
    };
    let (_, abandoned) = tokio::join!(send_after(&core, 0, 3, 50), abandoned);
    assert!(abandoned);
    advance(ms(100)).await;
    assert_eq!(send(&core, Probe(2, ms(1))).await, Ok(2));
    let sizes: Vec<_> = batches().into_iter().map(|(_, sizes)| sizes).collect();
    assert_eq!(sizes, [[3], [2]]);
}
