//! Personal state: cleared histories, hidden entries, and the unread total, equal on every device.

use tidegate_protocol::{Code, codec::Wire, pb};

use crate::support::{Client, ServerBody, TestNode, ask, send, seqs_of};

const PLACE: &str = "d:alice:bob";

fn missing_ranges(page: &pb::Page) -> Vec<(u64, u64)> {
    page.expired.iter().map(|range| (range.first, range.last)).collect()
}

fn talk(client: &mut Client, place: &str, name: &str, count: u64) {
    let ids: Vec<u64> =
        (0..count).map(|n| client.say(ask::send(send(place, &format!("{name}{n}"), "text")))).collect();
    ids.into_iter().for_each(|id| drop(client.expect_ack(id)));
}

#[test]
fn clear_hides_the_history_on_the_users_devices_only() {
    let node = TestNode::start(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let mut phone = node.login(Wire::WsText, "bob", "phone");
    let mut laptop = node.login(Wire::WsBinary, "bob", "laptop");
    assert_eq!(phone.refused(ask::clear(PLACE, 1)), Code::NotYet, "the conversation has no messages");
    talk(&mut alice, "bob", "m", 10);
    assert_eq!(phone.refused(ask::clear(PLACE, 0)), Code::Malformed);
    phone.expect_done(ask::clear(PLACE, 6));
    let news = laptop.take("the news", |frame| matches!(frame.body, Some(ServerBody::Cleared(_))));
    let cleared = pb::Cleared { conversation: PLACE.into(), seq: 6 };
    assert_eq!((news.id, news.body), (0, Some(ServerBody::Cleared(cleared))));
    laptop.expect_done(ask::clear(PLACE, 3));
    let state = laptop.state(PLACE);
    assert_eq!((state.min_seq, state.max_seq, state.cleared_seq), (7, 10, 6), "a clear only moves forward");
    assert_eq!((state.read_seq, state.unread), (0, 4), "cleared messages are neither unread nor read");
    let page = laptop.page(ask::after(PLACE, 0, 50));
    assert_eq!((seqs_of(&page), missing_ranges(&page)), ((7..=10).collect(), vec![(1, 6)]));
    assert_eq!(seqs_of(&alice.page(ask::after(PLACE, 0, 50))), (1..=10).collect::<Vec<_>>());
    phone.expect_done(ask::clear(PLACE, 1_000));
    let state = phone.state(PLACE);
    assert_eq!((state.cleared_seq, state.max_seq, state.unread), (10, 10, 0), "no further than the last seq");
    assert!(state.last.is_none(), "no message is left to show");
    talk(&mut alice, "bob", "n", 1);
    assert_eq!(phone.state(PLACE).unread, 1);
    phone.settle();
    assert!(
        !phone
            .inbox
            .iter()
            .any(|frame| matches!(frame.body, Some(ServerBody::Cleared(pb::Cleared { seq: 10, .. }))))
    );
    let mut eve = node.login(Wire::Tcp, "eve", "phone");
    assert_eq!(eve.refused(ask::clear(PLACE, 1)), Code::Forbidden);
    assert_eq!(eve.refused(ask::hide("g:nowhere", &[1])), Code::NotAMember);
}

#[test]
fn hidden_entries_are_invisible_and_not_counted() {
    let node = TestNode::start(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let mut phone = node.login(Wire::JsonLine, "bob", "phone");
    let mut laptop = node.login(Wire::Tcp, "bob", "laptop");
    talk(&mut alice, "bob", "m", 6);
    talk(&mut phone, "alice", "b", 1);
    phone.expect_done(ask::hide(PLACE, &[2, 6, 7, 99]));
    let news = laptop.take("the news", |frame| matches!(frame.body, Some(ServerBody::Hidden(_))));
    let hidden = pb::Hidden { conversation: PLACE.into(), seqs: vec![2, 6, 7] };
    assert_eq!(news.body, Some(ServerBody::Hidden(hidden)));
    let state = laptop.state(PLACE);
    assert_eq!((state.unread, state.max_seq, state.hidden), (4, 7, vec![2, 6, 7]));
    assert_eq!(state.last.expect("the last visible message").seq, 5);
    let page = laptop.page(ask::before(PLACE, 0, 50));
    assert_eq!((seqs_of(&page), missing_ranges(&page)), (vec![5, 4, 3, 1], vec![(6, 7), (2, 2)]));
    assert_eq!(missing_ranges(&laptop.page(ask::seqs(PLACE, &[1, 2]))), [(2, 2)]);
    phone.expect_done(ask::hide(PLACE, &[2]));
    laptop.expect_done(ask::read(PLACE, 3));
    assert_eq!(phone.state(PLACE).unread, 2);
    let data = node.stop();
    let node = TestNode::start_on(&data, |_| {});
    let mut phone = node.login(Wire::Tcp, "bob", "phone");
    let state = phone.state(PLACE);
    assert_eq!((state.unread, state.hidden), (2, vec![2, 6, 7]), "hides survive a restart");
    phone.expect_done(ask::clear(PLACE, 6));
    assert_eq!(phone.state(PLACE).hidden, [7], "a clear removes hides");
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    assert_eq!(seqs_of(&alice.page(ask::after(PLACE, 0, 50))), (1..=7).collect::<Vec<_>>());
}

#[test]
fn hidden_entries_are_bounded_and_a_clear_frees_them() {
    let node = TestNode::start(|config| config.limits.window_max = 10_000);
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    for n in 0..3 {
        talk(&mut alice, "bob", &format!("m{n}-"), 200);
    }
    let upto = |first: u64, last: u64| (first..=last).collect::<Vec<_>>();
    alice.expect_done(ask::hide(PLACE, &upto(1, 200)));
    alice.expect_done(ask::hide(PLACE, &upto(201, 400)));
    assert_eq!(alice.refused(ask::hide(PLACE, &upto(401, 501))), Code::TooManyHidden);
    assert_eq!(alice.state(PLACE).hidden.len(), 400, "all or none");
    assert_eq!(alice.refused(ask::hide(PLACE, &upto(401, 601))), Code::Malformed, "200 in one frame");
    alice.expect_done(ask::hide(PLACE, &upto(401, 500)));
    assert_eq!(alice.refused(ask::hide(PLACE, &[501])), Code::TooManyHidden);
    alice.expect_done(ask::clear(PLACE, 300));
    alice.expect_done(ask::hide(PLACE, &[501]));
    assert_eq!(alice.state(PLACE).hidden, upto(301, 501));
    assert_eq!(seqs_of(&alice.page(ask::after(PLACE, 0, 200))), [] as [u64; 0]);
    assert_eq!(seqs_of(&alice.page(ask::after(PLACE, 500, 10))), upto(502, 510));
}

#[test]
fn unread_total_is_the_sum() {
    // Bob acks none of the pushes, however long the test takes.
    let node = TestNode::start(|config| config.timing.ack_timeout_ms = 60_000);
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    assert_eq!(bob.sync_all(&[]), (vec![], 0));
    // More than one part of the reply.
    let mut model = 0;
    for n in 0..200 {
        let count = n % 4;
        let mut peer = node.login(Wire::Tcp, &format!("u{n:03}"), "phone");
        talk(&mut peer, "bob", "m", count);
        let place = format!("d:bob:u{n:03}");
        match (n % 5, count) {
            (_, 0) => {}
            (0, _) => bob.expect_done(ask::read(&place, 1)),
            (1, _) => bob.expect_done(ask::clear(&place, 1)),
            (2, _) => bob.expect_done(ask::hide(&place, &[count])),
            _ => talk(&mut bob, &format!("u{n:03}"), "mine", 2),
        }
        model += count - u64::from(n % 5 < 3 && count > 0);
    }
    let (states, total) = bob.sync_all(&[]);
    assert!(states.len() > 128);
    assert_eq!((total, states.iter().map(|state| state.unread).sum::<u64>()), (model, model));
}
