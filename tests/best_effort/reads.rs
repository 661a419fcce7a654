//! Reads of one user that the store is slow to answer: they wait for each other, and delay no other user.

use tidegate::fault::{Fault, Gate};
use tidegate_protocol::{Code, codec::Wire};

use super::{ServerBody, ask, eventually, mesh, text_of};
use crate::support::Client;

#[test]
fn x6_reads_of_one_user_wait_for_each_other_only() {
    let (mesh, _) = mesh(2);
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    let mut eve: Vec<Client> =
        (0..5).map(|n| mesh.login(1, Wire::Tcp, "eve", &format!("device-{n}"))).collect();
    let mut bob = mesh.login(1, Wire::WsText, "bob", "phone");
    assert_eq!(ann.text("bob", "m1", "hi"), 1);
    assert_eq!(ann.text("eve", "m2", "hi"), 1);
    let (gate, store) = (Gate::new(), &mesh.node(1).store);
    (0..2).for_each(|_| store.plan("page", Fault::Hold(gate.clone())));
    let asked: Vec<u64> = eve.iter_mut().map(|it| it.say(ask::after("d:ann:eve", 0, 9))).collect();
    eventually("two reads of the user are at the store", || (gate.reached() == 2).then_some(()));
    let id = bob.say(ask::after("d:ann:bob", 0, 9));
    let ServerBody::Page(page) = bob.reply(id) else { panic!("no page") };
    assert_eq!(page.messages.iter().map(text_of).collect::<Vec<_>>(), ["hi"]);
    // The others of the user do not reach the store, although it would answer them.
    let mut codes = Vec::new();
    for (id, client) in asked.into_iter().zip(&mut eve) {
        let ServerBody::Error(error) = client.reply(id) else { panic!("no error") };
        assert!(error.temporary && error.retry_after_ms > 0, "{error:?}");
        codes.push(error.code);
    }
    let busy = codes.iter().filter(|code| **code == u32::from(Code::Busy.number()));
    assert_eq!(busy.count(), 3, "{codes:?}: two were not answered in time");
    gate.open();
    for client in &mut eve {
        let id = client.say(ask::after("d:ann:eve", 0, 9));
        assert!(matches!(client.reply(id), ServerBody::Page(_)), "the user reads again");
    }
}

/// K4, S56.
#[test]
fn k4_query_whose_work_panics_is_answered() {
    let (mesh, _) = mesh(1);
    let (mut ann, mut bob) =
        (mesh.login(0, Wire::Tcp, "ann", "phone"), mesh.login(0, Wire::WsText, "bob", "phone"));
    assert_eq!(ann.text("bob", "m1", "hi"), 1);
    let (gate, store) = (Gate::new(), &mesh.node(0).store);
    // At the first poll, on the thread of the shard, and later, in the runtime.
    store.plan("page", Fault::Panic);
    let id = ann.say(ask::after("d:ann:bob", 0, 9));
    let ServerBody::Error(error) = ann.reply(id) else { panic!("no error") };
    assert_eq!(error.code, u32::from(Code::Internal.number()));
    store.plan("summary", Fault::HoldAnswer(gate.clone()));
    store.plan("page", Fault::Panic);
    let id = bob.say(ask::after("d:ann:bob", 0, 9));
    gate.open();
    let ServerBody::Error(error) = bob.reply(id) else { panic!("no error") };
    assert_eq!(error.code, u32::from(Code::Internal.number()));
    // Both connections go on.
    for client in [&mut ann, &mut bob] {
        let id = client.say(ask::after("d:ann:bob", 0, 9));
        let ServerBody::Page(page) = client.reply(id) else { panic!("no page") };
        assert_eq!(page.messages.iter().map(text_of).collect::<Vec<_>>(), ["hi"]);
    }
}
