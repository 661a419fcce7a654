//! Overload of a shard: what waits for the log makes it refuse messages, for a time that it names, and nothing is lost or
//! out of order afterwards.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tidegate::{
    limits::{RuleGuard, RuleSet},
    load::{GateSettings, LoadFigures},
    mail::{ConnKey, Mail},
};
use tidegate_protocol::{
    Code,
    machine::session::SubmitAnswer,
    pb,
    record::{Body, Record},
};

use crate::{
    join, login, login_as,
    manual_shards::ManualShards,
    network::Memory,
    support::{Client, ServerBody, ask, hello, send},
};

const STEP: Duration = Duration::from_millis(100);

/// Messages that wait for the log.
const WAITING: usize = 600;

/// Messages that are answered in each step: fewer say nothing about a queue.
const ANSWERED: usize = 8;

/// Answers a message as the owner does.
fn answer(shards: &ManualShards<Memory>, record: &Record) {
    answer_with(shards, record, SubmitAnswer::Accepted { seq: 1, time: 1 });
}

fn answer_with(shards: &ManualShards<Memory>, record: &Record, answer: SubmitAnswer) {
    let (key, ticket) = (ConnKey::unpack(record.origin.conn), record.origin.request);
    shards.post(0, Mail::Answers(vec![(key, ticket, answer)]));
}

fn id_of(record: &Record) -> &str {
    let Body::Message(message) = &record.body else { panic!("a message") };
    message.msg_id.as_str()
}

/// Shard with a queue at the log: the messages of three users wait for answers, which come late.
struct Queue {
    shards: ManualShards<Memory>,
    /// Users whose messages wait.
    _clients: Vec<Client>,
    waiting: Vec<Record>,
    load: Arc<LoadFigures>,
}

impl Queue {
    fn new(is_enabled: bool) -> Self {
        let mut queue = Self::filled(is_enabled, Duration::from_secs(60));
        queue.delay();
        queue
    }

    /// Creates a shard with a queue of which nothing was answered yet.
    fn filled(is_enabled: bool, reply_deadline: Duration) -> Self {
        let mut load = None;
        let mut shards = ManualShards::new(1, |context, _| {
            context.gates = GateSettings { is_enabled, ..GateSettings::default() };
            context.conn_settings.change(|it| it.limits.reply_deadline = reply_deadline);
            load = Some(Arc::clone(&context.load));
        });
        let mut probe = login(&mut shards, 0, "probe", &[]);
        // The base is measured without a queue.
        probe.say(ask::send(send("carl", "base", "hi")));
        shards.turn(0);
        shards.take_sends().iter().for_each(|record| answer(&shards, record));
        shards.turn(0);
        let mut clients: Vec<Client> =
            ["ann", "bob", "eve"].iter().map(|user| login(&mut shards, 0, user, &[])).collect();
        for n in 0..WAITING {
            clients[n % 3].say(ask::send(send("carl", &format!("w-{n}"), "hi")));
        }
        (0..20).for_each(|_| shards.turn(0));
        let waiting = shards.take_sends();
        assert_eq!(waiting.len(), WAITING, "nothing is refused before anything was late");
        Self { shards, _clients: clients, waiting, load: load.expect("the context was built") }
    }

    /// Lets 3 s pass in which some messages that have waited long are accepted in each 100 ms.
    fn delay(&mut self) {
        for _ in 0..30 {
            self.step(&SubmitAnswer::Accepted { seq: 1, time: 1 });
        }
    }

    /// Lets 100 ms pass, after which some messages are answered.
    fn step(&mut self, answer: &SubmitAnswer) {
        self.shards.now = self.shards.now + STEP;
        for record in self.waiting.drain(..ANSWERED) {
            answer_with(&self.shards, &record, answer.clone());
        }
        self.shards.turn(0);
    }

    fn limit(&self) -> u32 {
        self.load.shard(0).sends.limit()
    }

    /// Says something and returns what is answered at once.
    fn ask(&mut self, client: &mut Client, body: crate::support::ClientBody) -> Option<ServerBody> {
        let id = client.say(body);
        self.shards.turn(0);
        self.shards.turn(0);
        client.listen(Duration::ZERO);
        let at = client.inbox.iter().position(|frame| frame.id == id)?;
        client.inbox.remove(at)?.body
    }
}

fn busy(answer: Option<ServerBody>) -> Duration {
    let Some(ServerBody::Error(error)) = answer else { panic!("a refusal, not {answer:?}") };
    assert_eq!((error.name.as_str(), error.temporary), ("BUSY", true), "{error:?}");
    Duration::from_millis(error.retry_after_ms.into())
}

#[test]
fn queue_at_the_log_refuses_messages_and_the_chain_goes_on_after_the_wait() {
    let mut queue = Queue::new(true);
    let token = queue.shards.token("dan");
    let chained = pb::Hello { next_id: "c-1".into(), ..hello(&token, "d") };
    let mut dan = login_as(&mut queue.shards, chained);
    let link =
        |n: usize| pb::Send { next_id: format!("c-{}", n + 1), ..send("carl", &format!("c-{n}"), "hi") };
    let wait = busy(queue.ask(&mut dan, ask::send(link(1))));
    assert!((400..=20_000).contains(&(wait.as_millis() as u64)), "{wait:?}");
    busy(queue.ask(&mut dan, ask::send(link(2))));
    assert_eq!(queue.shards.take_sends(), [], "the log gets neither");
    queue.waiting.drain(..).for_each(|record| answer(&queue.shards, &record));
    (0..10).for_each(|_| queue.shards.turn(0));
    queue.shards.now = queue.shards.now + wait;
    for n in 1..=2 {
        assert!(queue.ask(&mut dan, ask::send(link(n))).is_none(), "admitted");
    }
    let taken = queue.shards.take_sends();
    assert_eq!(taken.iter().map(id_of).collect::<Vec<_>>(), ["c-1", "c-2"], "in order, each once");
}

#[test]
fn queue_at_the_log_refuses_joins_and_signals_first_and_reads_of_marks_never() {
    let mut queue = Queue::new(true);
    let mut dan = login(&mut queue.shards, 0, "dan", &[]);
    busy(queue.ask(&mut dan, ask::join("hall")));
    busy(queue.ask(&mut dan, ask::signal("carl", "typing", "")));
    let pong = queue.ask(&mut dan, ask::ping());
    assert!(matches!(pong, Some(ServerBody::Pong(_))), "{pong:?}");
    // Half of the limit is free again, but not for messages only.
    queue.waiting.drain(..).for_each(|record| answer(&queue.shards, &record));
    (0..10).for_each(|_| queue.shards.turn(0));
    join(&mut queue.shards, 0, &mut dan, "hall");
}

#[test]
fn closed_connections_leave_the_gate() {
    let mut queue = Queue::new(true);
    let mut dan = login(&mut queue.shards, 0, "dan", &[]);
    busy(queue.ask(&mut dan, ask::send(send("carl", "d-1", "hi"))));
    for user in ["ann", "bob", "eve"] {
        let user = tidegate_protocol::id::UserId::new(user).expect("a good id");
        let (reply, _) = tokio::sync::oneshot::channel();
        queue.shards.post(0, Mail::Cut(user, None, reply));
    }
    queue.shards.turn(0);
    assert!(queue.ask(&mut dan, ask::send(send("carl", "d-1", "hi"))).is_none(), "admitted");
}

#[test]
fn gates_that_are_off_refuse_nothing() {
    let mut queue = Queue::new(false);
    let mut dan = login(&mut queue.shards, 0, "dan", &[]);
    assert!(queue.ask(&mut dan, ask::send(send("carl", "d-1", "hi"))).is_none(), "admitted");
    join(&mut queue.shards, 0, &mut dan, "hall");
}

#[test]
fn failed_appends_say_nothing_about_the_queue() {
    let mut queue = Queue::filled(true, Duration::from_secs(60));
    let limit = queue.limit();
    for code in [Code::BusUnavailable, Code::ArchiveBehind] {
        (0..10).for_each(|_| queue.step(&SubmitAnswer::Refused { code, message: "".into() }));
    }
    assert_eq!(queue.limit(), limit);
    let refused = SubmitAnswer::Refused { code: Code::NotAMember, message: "".into() };
    (0..10).for_each(|_| queue.step(&refused));
    assert!(queue.limit() < limit, "refusals by the ledger do");
}

#[test]
fn messages_to_rooms_do_not_hide_the_queue() {
    let mut queue = Queue::filled(true, Duration::from_secs(60));
    let limit = queue.limit();
    let mut dan = login(&mut queue.shards, 0, "dan", &[]);
    join(&mut queue.shards, 0, &mut dan, "hall");
    for n in 0..10 {
        dan.say(ask::send(send("r:hall", &format!("r-{n}"), "hi")));
        queue.step(&SubmitAnswer::Accepted { seq: 1, time: 1 });
    }
    dan.listen(Duration::ZERO);
    assert!(
        dan.inbox.iter().any(|frame| matches!(frame.body, Some(ServerBody::SendAck(_)))),
        "answered at once"
    );
    assert!(queue.limit() < limit, "{}", queue.limit());
}

#[test]
fn messages_without_an_answer_in_time_count_as_late_as_their_deadline() {
    let mut queue = Queue::filled(true, Duration::from_secs(2));
    let limit = queue.limit();
    for _ in 0..25 {
        queue.shards.now = queue.shards.now + STEP;
        queue.shards.turn(0);
    }
    assert!(queue.limit() < limit, "{}", queue.limit());
    assert_eq!(queue.load.shard(0).sends.in_flight(), 0, "they have left");
}

#[test]
fn messages_that_wait_for_a_rule_hold_no_unit_of_the_gate() {
    let text = "[[rule]]\nid = \"slow\"\nlevel = \"user\"\ncalls = [\"send\"]\nwindow = \"1s\"\nlimit = 1\n\
                action = \"delay\"\nmax_wait = \"2s\"\n";
    let rules = RuleSet::parse(text, Duration::from_secs(2)).expect("good rules");
    let mut load = None;
    let mut shards = ManualShards::<Memory>::new(1, |context, _| {
        context.gates = GateSettings { is_enabled: true, ..GateSettings::default() };
        context.rules = Arc::new(RuleGuard::new(&rules, context.metrics.clone(), Instant::now()));
        load = Some(Arc::clone(&context.load));
    });
    let mut ann = login(&mut shards, 0, "ann", &[]);
    for n in 0..2 {
        ann.say(ask::send(send("carl", &format!("m-{n}"), "hi")));
        shards.turn(0);
    }
    ann.listen(Duration::ZERO);
    assert_eq!(shards.take_sends().len(), 1, "the second one waits: {:?}", ann.inbox);
    shards.now = shards.now + STEP;
    shards.turn(0);
    assert_eq!(load.expect("the context was built").shard(0).sends.in_flight(), 1);
}
