//! Tests of a bot against frames of a broker that are written by hand.

use super::{
    super::{judge::Stored, past::Past},
    *,
};

const CONVERSATION: &str = "d:ada:ben";

/// Bot of ben, its recording and its clock.
struct Bench {
    bot: Bot,
    record: Record,
    now: Duration,
}

impl Bench {
    /// Logs in, and answers the first sync with `max` as the end of the conversation.
    fn synced(max: u64) -> Self {
        let bot = Bot::new(User::Ben, CONVERSATION);
        let mut bench = Self { bot, record: Record::default(), now: Duration::ZERO };
        bench.login(max);
        bench
    }

    /// Logs in; returns the frames that follow the sync.
    fn login(&mut self, max: u64) -> Vec<ClientBody> {
        self.bot.connected(self.now, &mut self.record);
        let ready = self.bot.take_ready();
        let sync = ready.iter().find(|it| matches!(it.body, Some(ClientBody::Sync(_)))).expect("a sync").id;
        if max > 0 {
            let state = pb::ConversationState {
                conversation: CONVERSATION.into(),
                max_seq: max,
                ..Default::default()
            };
            self.get(sync, ServerBody::ConversationState(state));
        }
        let mut after: Vec<ClientBody> = ready.into_iter().filter_map(|it| it.body).skip(1).collect();
        after.extend(self.get(sync, ServerBody::SyncEnd(pb::SyncEnd::default())));
        after
    }

    /// Receives a frame; returns what the bot sends then.
    fn get(&mut self, id: u64, body: ServerBody) -> Vec<ClientBody> {
        self.bot.receive(pb::ServerFrame { id, body: Some(body) }, self.now, &mut self.record);
        self.ready()
    }

    fn ready(&mut self) -> Vec<ClientBody> {
        self.bot.take_ready().into_iter().filter_map(|frame| frame.body).collect()
    }

    fn push(&mut self, seq: u64) -> Vec<ClientBody> {
        self.get(0, ServerBody::Push(push(seq)))
    }

    /// Lets time pass; returns what the bot sends then.
    fn pass(&mut self, time: Duration) -> Vec<ClientBody> {
        self.now += time;
        self.bot.tick(self.now, &mut self.record);
        self.ready()
    }

    fn write(&mut self, id: &str) -> (u64, pb::Send) {
        self.bot.write(id.into(), "hello".into(), self.now, &mut self.record);
        self.sent()
    }

    /// Returns the send that is ready, and its request id.
    fn sent(&mut self) -> (u64, pb::Send) {
        let mut frames = self.bot.take_ready();
        assert_eq!(frames.len(), 1, "{frames:?}");
        let frame = frames.remove(0);
        match frame.body {
            Some(ClientBody::Send(send)) => (frame.id, send),
            other => panic!("no send: {other:?}"),
        }
    }

    fn ack(&mut self, request: u64, id: &str, seq: u64, duplicate: bool) {
        let ack = pb::SendAck {
            conversation: CONVERSATION.into(),
            msg_id: id.into(),
            seq,
            duplicate,
            ..Default::default()
        };
        self.get(request, ServerBody::SendAck(ack));
    }

    fn shown(&self) -> Vec<u64> {
        self.record.shown(User::Ben).iter().map(|shown| shown.seq).collect()
    }
}

fn push(seq: u64) -> pb::Push {
    pb::Push {
        conversation: CONVERSATION.into(),
        seq,
        sender: "ada".into(),
        msg_id: format!("m{seq}"),
        content: Some(Content::text("hi")),
        ..Default::default()
    }
}

/// Returns the request id and the cursor of the only pull that is ready.
fn pulled(bench: &mut Bench) -> (u64, u64) {
    let frames = bench.bot.take_ready();
    let [frame] = &frames[..] else { panic!("not one frame: {frames:?}") };
    match &frame.body {
        Some(ClientBody::Pull(pull)) => (frame.id, pull.cursor),
        other => panic!("no pull: {other:?}"),
    }
}

fn page(seqs: &[u64], complete_to: u64) -> ServerBody {
    let messages = seqs.iter().map(|seq| push(*seq)).collect();
    ServerBody::Page(pb::Page {
        conversation: CONVERSATION.into(),
        messages,
        complete_to,
        ..Default::default()
    })
}

/// Ends the audit; returns the seqs of the history.
fn audited(bench: &mut Bench) -> Option<Vec<u64>> {
    let entries = bench.bot.end_audit()?.entries;
    Some(entries.iter().map(|entry| entry.seq).collect())
}

fn acked(body: &ClientBody) -> Option<u64> {
    if let ClientBody::Ack(ack) = body { Some(ack.seq) } else { None }
}

#[test]
fn bot_begins_at_the_end_of_an_older_conversation() {
    let mut bench = Bench::synced(41);
    assert_eq!(bench.bot.complete(), Some(41));
    assert_eq!(acked(&bench.push(42)[0]), Some(42));
    assert_eq!(bench.shown(), [42]);
    assert_eq!(bench.record.shown(User::Ben)[0].text, "hi");
}

#[test]
fn push_is_shown_once_and_its_copy_acked_again() {
    let mut bench = Bench::synced(0);
    assert_eq!(acked(&bench.push(1)[0]), Some(1));
    assert_eq!(acked(&bench.push(1)[0]), Some(1), "the ack of the first one may be lost");
    assert_eq!((bench.shown(), bench.bot.copies), (vec![1], 1));
}

#[test]
fn hole_is_shown_in_order_once_it_is_filled() {
    let mut bench = Bench::synced(0);
    bench.push(1);
    assert!(bench.push(3).is_empty(), "nothing new is complete");
    assert_eq!(acked(&bench.push(2)[0]), Some(3));
    assert_eq!(bench.shown(), [1, 2, 3]);
}

#[test]
fn lasting_hole_is_pulled() {
    let mut bench = Bench::synced(0);
    bench.push(1);
    bench.push(4);
    assert!(bench.pass(Duration::from_millis(100)).is_empty());
    assert!(!bench.bot.is_calm(0));
    bench.now += MISSING_MAX;
    bench.bot.tick(bench.now, &mut bench.record);
    let (request, cursor) = pulled(&mut bench);
    assert_eq!(cursor, 1);
    bench.get(request, page(&[2, 3, 4], 4));
    assert_eq!(bench.shown(), [1, 2, 3, 4]);
    let is_pulled: Vec<bool> = bench.record.shown(User::Ben).iter().map(|shown| shown.is_pulled).collect();
    assert_eq!(is_pulled, [false, true, true, false]);
    assert!(bench.bot.is_calm(4) && !bench.bot.is_calm(5));
}

#[test]
fn missed_messages_are_pulled_page_by_page_after_a_login() {
    let mut bench = Bench::synced(0);
    bench.push(1);
    bench.bot.disconnected();
    assert!(!bench.bot.is_live());
    bench.bot.connected(bench.now, &mut bench.record);
    let sync = bench.bot.take_ready()[0].id;
    let state = pb::ConversationState { conversation: CONVERSATION.into(), max_seq: 4, ..Default::default() };
    bench.get(sync, ServerBody::ConversationState(state));
    let end = ServerBody::SyncEnd(pb::SyncEnd::default());
    bench.bot.receive(pb::ServerFrame { id: sync, body: Some(end) }, bench.now, &mut bench.record);
    let (request, cursor) = pulled(&mut bench);
    assert_eq!(cursor, 1);
    let frame = pb::ServerFrame { id: request, body: Some(page(&[2, 3], 4)) };
    bench.bot.receive(frame, bench.now, &mut bench.record);
    let frames = bench.bot.take_ready();
    assert_eq!(frames[0].body.as_ref().and_then(acked), Some(3));
    assert!(matches!(&frames[1].body, Some(ClientBody::Pull(pull)) if pull.cursor == 3), "{frames:?}");
    bench.get(frames[1].id, page(&[4], 4));
    assert_eq!(bench.shown(), [1, 2, 3, 4]);
}

#[test]
fn frozen_bot_acks_nothing_until_it_thaws() {
    let mut bench = Bench::synced(0);
    bench.bot.is_frozen = true;
    assert!(bench.push(1).is_empty() && bench.push(1).is_empty());
    assert_eq!(bench.shown(), [1], "it takes what it gets");
    bench.bot.thaw();
    assert_eq!(acked(&bench.ready()[0]), Some(1));
}

#[test]
fn unanswered_message_is_sent_again_under_its_id() {
    let mut bench = Bench::synced(0);
    let (_, first) = bench.write("b1");
    assert_eq!((first.to_user.as_str(), first.msg_id.as_str(), first.attempt), ("ada", "b1", 0));
    bench.bot.disconnected();
    let after = bench.login(0);
    assert!(
        matches!(&after[0], ClientBody::Send(send) if (send.msg_id.as_str(), send.attempt) == ("b1", 1)),
        "{after:?}"
    );
    // Request 1 was the first sync, 2 the first attempt, 3 the second sync.
    bench.ack(4, "b1", 1, true);
    let sent = bench.record.find("b1").unwrap();
    assert_eq!((sent.attempts, sent.seq(), sent.acks[0].is_duplicate), (2, Some(1), true));
    assert!(bench.bot.is_calm(1), "an own message gets no push");
}

#[test]
fn repeated_message_has_two_acks() {
    let mut bench = Bench::synced(0);
    let (first, _) = bench.write("b1");
    bench.bot.repeat("b1", bench.now, &mut bench.record);
    let (second, send) = bench.sent();
    assert_eq!(send.attempt, 1);
    bench.ack(first, "b1", 1, false);
    bench.ack(second, "b1", 1, true);
    assert_eq!(bench.record.find("b1").unwrap().acks.len(), 2);
}

#[test]
fn temporary_refusal_is_sent_again_after_the_wait_and_lasting_one_is_kept() {
    let mut bench = Bench::synced(0);
    let (request, _) = bench.write("b1");
    let busy = pb::Error { code: 1, temporary: true, retry_after_ms: 300, ..Default::default() };
    bench.get(request, ServerBody::Error(busy));
    assert!(bench.pass(Duration::from_millis(299)).is_empty());
    bench.now += Duration::from_millis(1);
    bench.bot.tick(bench.now, &mut bench.record);
    let (request, send) = bench.sent();
    assert_eq!(send.attempt, 1);
    bench.get(request, ServerBody::Error(pb::Error { code: 7, name: "NO".into(), ..Default::default() }));
    assert_eq!(bench.record.find("b1").unwrap().refused.as_deref(), Some("7 NO"));
    assert!(bench.bot.is_calm(0));
}

#[test]
fn hidden_message_counts_as_had_and_is_not_shown() {
    let mut bench = Bench::synced(0);
    bench.bot.hidden = Some("m2".into());
    for seq in 1..=3 {
        bench.push(seq);
    }
    assert_eq!((bench.shown(), bench.bot.complete()), (vec![1, 3], Some(3)));
}

#[test]
fn audit_pulls_everything_and_repairs_nothing() {
    let mut bench = Bench::synced(0);
    bench.push(1);
    bench.bot.begin_audit(0, None);
    let (request, cursor) = pulled(&mut bench);
    assert_eq!(cursor, 0);
    let frame = pb::ServerFrame { id: request, body: Some(page(&[1, 2], 3)) };
    bench.bot.receive(frame, bench.now, &mut bench.record);
    let (request, cursor) = pulled(&mut bench);
    assert_eq!(cursor, 2);
    assert!(!bench.bot.has_audit(), "a page is missing");
    bench.get(request, page(&[3], 3));
    assert!(bench.bot.has_audit());
    assert_eq!(audited(&mut bench), Some(vec![1, 2, 3]));
    assert_eq!((bench.shown(), bench.bot.complete()), (vec![1], Some(1)));
}

#[test]
fn audit_begins_again_on_the_next_connection() {
    let mut bench = Bench::synced(0);
    bench.bot.begin_audit(0, None);
    let (request, _) = pulled(&mut bench);
    bench.get(request, page(&[1], 2));
    bench.bot.disconnected();
    let after = bench.login(0);
    assert!(
        matches!(after.first(), Some(ClientBody::Pull(pull)) if pull.cursor == 0),
        "the pages of two connections are not mixed: {after:?}"
    );
}

#[test]
fn whole_audit_finds_what_was_lost_after_it_was_judged() {
    let message = |seq| Stored { seq, message: Some(("m".to_owned() + &seq.to_string(), "hi".to_owned())) };
    let mut past = Past::default();
    past.add(&[1, 2, 3].map(message), 3);
    let past = std::sync::Arc::new(past);
    for (kept, lost) in [(&[1u64, 2][..], None), (&[1], Some("seq 2 was in ben's history"))] {
        let mut bench = Bench::synced(3);
        bench.bot.begin_audit(3, Some(&past));
        let (request, cursor) = pulled(&mut bench);
        assert_eq!(cursor, 0, "all of it is pulled");
        let frame = pb::ServerFrame { id: request, body: Some(page(kept, 4)) };
        bench.bot.receive(frame, bench.now, &mut bench.record);
        let (request, cursor) = pulled(&mut bench);
        assert_eq!(cursor, *kept.last().unwrap());
        bench.get(request, page(&[3, 4], 4));
        let pulled = bench.bot.end_audit().unwrap();
        assert_eq!(pulled.entries, [message(4)], "what was judged is not kept again");
        let found: Vec<_> = pulled.changed.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!(found.len(), lost.into_iter().count(), "{found:?}");
        assert!(lost.is_none_or(|lost| found[0].starts_with(lost)), "{found:?}");
    }
}

#[test]
fn page_of_an_ended_audit_is_not_mixed_into_the_next_one() {
    let mut bench = Bench::synced(0);
    bench.bot.begin_audit(0, None);
    let (late, _) = pulled(&mut bench);
    assert_eq!(audited(&mut bench), None, "it is not complete");
    bench.bot.begin_audit(4, None);
    let (request, cursor) = pulled(&mut bench);
    assert_eq!(cursor, 4);
    assert!(bench.get(late, page(&[1, 2], 5)).is_empty() && !bench.bot.has_audit());
    bench.get(request, page(&[5], 5));
    assert_eq!(audited(&mut bench), Some(vec![5]));
}

#[test]
fn first_sync_is_repeated_until_it_is_answered() {
    let bot = Bot::new(User::Ben, CONVERSATION);
    let mut bench = Bench { bot, record: Record::default(), now: Duration::ZERO };
    assert_eq!(bench.bot.waits_for(0).as_deref(), Some("ben is not logged in"));
    bench.bot.last_error = Some("no node answers".into());
    assert_eq!(bench.bot.waits_for(0).as_deref(), Some("ben is not logged in (no node answers)"));
    bench.bot.connected(bench.now, &mut bench.record);
    let refused = bench.bot.take_ready()[0].id;
    assert!(bench.pass(Duration::from_millis(100)).is_empty(), "the first one is not answered yet");
    let busy = pb::Error { code: 4_017, name: "BUSY".into(), temporary: true, ..Default::default() };
    bench.get(refused, ServerBody::Error(busy));
    assert_eq!(bench.bot.waits_for(0).as_deref(), Some("ben has no answer to its sync (4017 BUSY)"));
    bench.bot.tick(bench.now, &mut bench.record);
    let frames = bench.bot.take_ready();
    let [frame] = &frames[..] else { panic!("not one frame: {frames:?}") };
    assert!(matches!(frame.body, Some(ClientBody::Sync(_))), "{frame:?}");
    bench.get(frame.id, ServerBody::SyncEnd(pb::SyncEnd::default()));
    assert!(bench.bot.is_calm(0) && bench.bot.last_error.is_none());
    assert!(bench.pass(Duration::from_millis(100)).is_empty(), "a sync that was answered is not repeated");
}

#[test]
fn bot_names_what_it_waits_for() {
    let mut bench = Bench::synced(3);
    assert_eq!(bench.bot.waits_for(3), None);
    assert_eq!(bench.bot.waits_for(5).as_deref(), Some("ben lacks seq 4 of 5"));
    let (first, _) = bench.write("b1");
    assert_eq!(bench.bot.waits_for(3).as_deref(), Some("ben has no answer to 1 message"));
    bench.bot.repeat("b1", bench.now, &mut bench.record);
    let (second, _) = bench.sent();
    bench.ack(first, "b1", 4, false);
    assert!(
        bench.bot.is_calm(4) && bench.bot.awaits_answer(),
        "the second attempt may be answered otherwise"
    );
    bench.ack(second, "b1", 4, true);
    assert!(!bench.bot.awaits_answer());
}
