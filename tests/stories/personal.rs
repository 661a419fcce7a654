//! What a user keeps for themselves: cleared histories, hidden entries, and what is unread in all; on every device alike.

use tidegate_protocol::{
    Code,
    codec::Wire,
    pb::{self, client_frame::Body},
};

use crate::support::{Client, Said, TestNode, ask, send};

const PLACE: &str = "d:alice:bob";

fn done(client: &mut Client, body: Body) {
    assert!(matches!(client.ask(body), Said::Done(_)));
}

fn seqs(page: &pb::Page) -> Vec<u64> {
    page.messages.iter().map(|push| push.seq).collect()
}

fn gone(page: &pb::Page) -> Vec<(u64, u64)> {
    page.expired.iter().map(|range| (range.first, range.last)).collect()
}

fn talk(client: &mut Client, place: &str, name: &str, count: u64) {
    let ids: Vec<u64> =
        (0..count).map(|n| client.say(ask::send(send(place, &format!("{name}{n}"), "text")))).collect();
    ids.into_iter().for_each(|id| drop(client.expect_ack(id)));
}

#[test]
fn a_cleared_history_is_gone_on_all_devices_of_the_user_and_on_no_other() {
    let node = TestNode::start(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let mut phone = node.login(Wire::WsText, "bob", "phone");
    let mut laptop = node.login(Wire::WsBinary, "bob", "laptop");
    assert_eq!(phone.refused(ask::clear(PLACE, 1)), Code::NotYet, "nothing was said");
    talk(&mut alice, "bob", "m", 10);
    assert_eq!(phone.refused(ask::clear(PLACE, 0)), Code::Malformed);
    done(&mut phone, ask::clear(PLACE, 6));
    let heard = laptop.take("the news", |frame| matches!(frame.body, Some(Said::Cleared(_))));
    let cleared = pb::Cleared { conversation: PLACE.into(), seq: 6 };
    assert_eq!((heard.id, heard.body), (0, Some(Said::Cleared(cleared))));
    done(&mut laptop, ask::clear(PLACE, 3));
    let state = laptop.state(PLACE);
    assert_eq!((state.min_seq, state.max_seq, state.cleared_seq), (7, 10, 6), "it only moves forward");
    assert_eq!((state.read_seq, state.unread), (0, 4), "what is cleared is not unread, and not read either");
    let page = laptop.page(ask::after(PLACE, 0, 50));
    assert_eq!((seqs(&page), gone(&page)), ((7..=10).collect(), vec![(1, 6)]));
    assert_eq!(seqs(&alice.page(ask::after(PLACE, 0, 50))), (1..=10).collect::<Vec<_>>());
    done(&mut phone, ask::clear(PLACE, 1_000));
    let state = phone.state(PLACE);
    assert_eq!((state.cleared_seq, state.max_seq, state.unread), (10, 10, 0), "no further than there is");
    assert!(state.last.is_none(), "nothing is left to show");
    talk(&mut alice, "bob", "n", 1);
    assert_eq!(phone.state(PLACE).unread, 1);
    phone.settle();
    assert!(
        !phone
            .inbox
            .iter()
            .any(|frame| matches!(frame.body, Some(Said::Cleared(pb::Cleared { seq: 10, .. }))))
    );
    let mut eve = node.login(Wire::Tcp, "eve", "phone");
    assert_eq!(eve.refused(ask::clear(PLACE, 1)), Code::Forbidden);
    assert_eq!(eve.refused(ask::hide("g:nowhere", &[1])), Code::NotAMember);
}

#[test]
fn hidden_entries_are_gone_for_the_user_and_do_not_count() {
    let node = TestNode::start(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let mut phone = node.login(Wire::JsonLine, "bob", "phone");
    let mut laptop = node.login(Wire::Tcp, "bob", "laptop");
    talk(&mut alice, "bob", "m", 6);
    talk(&mut phone, "alice", "b", 1);
    done(&mut phone, ask::hide(PLACE, &[2, 6, 7, 99]));
    let heard = laptop.take("the news", |frame| matches!(frame.body, Some(Said::Hidden(_))));
    let hidden = pb::Hidden { conversation: PLACE.into(), seqs: vec![2, 6, 7] };
    assert_eq!(heard.body, Some(Said::Hidden(hidden)));
    let state = laptop.state(PLACE);
    assert_eq!((state.unread, state.max_seq, state.hidden), (4, 7, vec![2, 6, 7]));
    assert_eq!(state.last.expect("one that is shown").seq, 5);
    let page = laptop.page(ask::before(PLACE, 0, 50));
    assert_eq!((seqs(&page), gone(&page)), (vec![5, 4, 3, 1], vec![(6, 7), (2, 2)]));
    assert_eq!(gone(&laptop.page(ask::seqs(PLACE, &[1, 2]))), [(2, 2)]);
    done(&mut phone, ask::hide(PLACE, &[2]));
    done(&mut laptop, ask::read(PLACE, 3));
    assert_eq!(phone.state(PLACE).unread, 2);
    let data = node.stop();
    let node = TestNode::start_on(&data, |_| {});
    let mut phone = node.login(Wire::Tcp, "bob", "phone");
    let state = phone.state(PLACE);
    assert_eq!((state.unread, state.hidden), (2, vec![2, 6, 7]), "it outlives a restart");
    done(&mut phone, ask::clear(PLACE, 6));
    assert_eq!(phone.state(PLACE).hidden, [7], "what is cleared need not be remembered one by one");
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    assert_eq!(seqs(&alice.page(ask::after(PLACE, 0, 50))), (1..=7).collect::<Vec<_>>());
}

#[test]
fn what_may_be_hidden_one_by_one_is_bounded_and_clearing_makes_room() {
    let node = TestNode::start(|config| config.limits.window_max = 10_000);
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    for n in 0..3 {
        talk(&mut alice, "bob", &format!("m{n}-"), 200);
    }
    let upto = |first: u64, last: u64| (first..=last).collect::<Vec<_>>();
    done(&mut alice, ask::hide(PLACE, &upto(1, 200)));
    done(&mut alice, ask::hide(PLACE, &upto(201, 400)));
    assert_eq!(alice.refused(ask::hide(PLACE, &upto(401, 501))), Code::TooManyHidden);
    assert_eq!(alice.state(PLACE).hidden.len(), 400, "all or none");
    assert_eq!(alice.refused(ask::hide(PLACE, &upto(401, 601))), Code::Malformed, "200 in one frame");
    done(&mut alice, ask::hide(PLACE, &upto(401, 500)));
    assert_eq!(alice.refused(ask::hide(PLACE, &[501])), Code::TooManyHidden);
    done(&mut alice, ask::clear(PLACE, 300));
    done(&mut alice, ask::hide(PLACE, &[501]));
    assert_eq!(alice.state(PLACE).hidden, upto(301, 501));
    assert_eq!(seqs(&alice.page(ask::after(PLACE, 0, 200))), [] as [u64; 0]);
    assert_eq!(seqs(&alice.page(ask::after(PLACE, 500, 10))), upto(502, 510));
}

#[test]
fn what_is_unread_in_all_is_the_sum() {
    // Bob acks none of the pushes, however long all of it takes.
    let node = TestNode::start(|config| config.timing.ack_timeout_ms = 60_000);
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    assert_eq!(bob.sync_all(&[]), (vec![], 0));
    // More than one part of the answer.
    let mut model = 0;
    for n in 0..200 {
        let count = n % 4;
        let mut peer = node.login(Wire::Tcp, &format!("u{n:03}"), "phone");
        talk(&mut peer, "bob", "m", count);
        let place = format!("d:bob:u{n:03}");
        match (n % 5, count) {
            (_, 0) => {}
            (0, _) => done(&mut bob, ask::read(&place, 1)),
            (1, _) => done(&mut bob, ask::clear(&place, 1)),
            (2, _) => done(&mut bob, ask::hide(&place, &[count])),
            _ => talk(&mut bob, &format!("u{n:03}"), "mine", 2),
        }
        model += count - u64::from(n % 5 < 3 && count > 0);
    }
    let (states, total) = bob.sync_all(&[]);
    assert!(states.len() > 128);
    assert_eq!((total, states.iter().map(|state| state.unread).sum::<u64>()), (model, model));
}
