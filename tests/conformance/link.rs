//! The suite of `Link`: so far, what a node that can't be reached must be told as.

use std::sync::Arc;

use tidegate::{
    fault::{FaultPlan, Faulty},
    link::{Answer, Delivery, Link, LinkError, LocalLink, Target},
    routes::Token,
};
use tidegate_protocol::machine::ledger::Outcome;

use super::{at_once, device, node, user};

fn local() -> Arc<dyn Link> {
    Arc::new(LocalLink)
}

fn faultless() -> Arc<dyn Link> {
    Arc::new(Faulty::new(local(), FaultPlan::none()))
}

suite! {
    { local => super::local(); faultless => super::faultless(); }
    { s5_a_node_that_is_not_there_takes_nothing }
}

async fn s5_a_node_that_is_not_there_takes_nothing(link: &Arc<dyn Link>) {
    let gone = node("gone", 1);
    let answer = Answer { conn: 1, request: 1, outcome: Outcome::Noted };
    assert_eq!(link.answers(&gone, vec![answer]).await, Err(LinkError::NotHere));
    let to = vec![Target { user: user("ann"), device: device("phone"), epoch: 7 }];
    let delivery = Delivery { push: "push".into(), to };
    assert_eq!(link.deliver(&gone, vec![delivery]).await, Err(LinkError::NotHere));
    let token = Token { at: gone.clone(), epoch: 7 };
    let stopped = link.stop_session(&user("ann"), &device("phone"), &token).await;
    assert_eq!(stopped, Err(LinkError::NotHere));
    assert_eq!(link.tails(&gone, Vec::new()).await, Err(LinkError::NotHere));
}

#[test]
fn the_local_link_answers_at_the_first_poll() {
    let link = local();
    assert_eq!(at_once(link.answers(&node("gone", 1), Vec::new())), Err(LinkError::NotHere));
}
