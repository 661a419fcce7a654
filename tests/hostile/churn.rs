//! Many logins and logouts: nothing is left behind, and the last connection of a device wins.

use tidegate_protocol::{Code, codec::Wire};

use crate::{
    chat::Chat,
    support::{Client, Process, ask, eventually, hello, text_of},
};

#[test]
fn two_thousand_logins_and_logouts_leave_nothing_behind() {
    // The caches of the store on disk grow with stored data, which is not the subject here.
    let node = Process::start(&["node.store=memory"]);
    let chat = Chat::begin(&node);
    let round = |from: usize| {
        for n in (from..from + 1_000).step_by(20) {
            let mut clients: Vec<Client> = (n..n + 20)
                .map(|n| node.login(Wire::ALL[n % 4], &format!("visitor-{}", n % 1_000), "d"))
                .collect();
            for (at, client) in clients.iter_mut().enumerate() {
                client.ask(ask::join(&format!("room-{at}")));
                client.text("absent", &format!("m{}", n + at), "hi");
                // Half of them say Bye, the others disconnect.
                if at % 2 == 0 {
                    client.say(ask::bye());
                    assert_eq!(client.expect_close(), Code::Bye);
                }
            }
        }
        node.metric_becomes("connections", 2.0);
        eventually("all connections are released", || (node.conns() == 2).then_some(()));
    };
    round(0);
    let (files, memory) = (node.files(), node.rss());
    round(1_000);
    assert!(node.files() <= files + 2, "{} files, {files} before", node.files());
    // Memory for a thousand logged messages, chains and heads, not for a thousand connections.
    let grown = node.rss().saturating_sub(memory);
    assert!(grown < 4 << 20, "memory grew by {grown} bytes");
    assert_eq!(node.metric("logins_total"), 2_002.0);
    chat.end();
    node.metric_becomes("connections", 0.0);
}

#[test]
fn five_hundred_devices_reconnecting_at_once_are_replaced() {
    const DEVICES: usize = 500;
    let node = Process::start(&["limits.devices_per_user=0", "limits.user_logins_per_second=0"]);
    let chat = Chat::begin(&node);
    let token = node.token("many");
    let login = |n: usize| {
        let mut client = Client::connect(node.address(), Wire::ALL[n % 4]);
        client.say(ask::hello(hello(&token, &format!("device-{n}"))));
        client
    };
    let mut old: Vec<Client> = (0..DEVICES).map(login).collect();
    old.iter_mut().for_each(Client::settle);
    let mut new: Vec<Client> = (0..DEVICES).map(login).collect();
    for client in &mut old {
        assert_eq!(client.expect_close(), Code::Replaced);
    }
    new.iter_mut().for_each(Client::settle);
    node.metric_becomes("connections", DEVICES as f64 + 2.0);
    chat.end();
}

#[test]
fn last_of_five_hundred_logins_of_a_device_stays() {
    const LOGINS: usize = 500;
    let node = Process::start(&["limits.user_logins_per_second=0"]);
    let chat = Chat::begin(&node);
    let mut friend = node.login(Wire::Tcp, "friend", "d");
    let token = node.token("one");
    let mut clients: Vec<Client> = (0..LOGINS)
        .map(|n| {
            let mut client = Client::connect(node.address(), Wire::ALL[n % 4]);
            client.say(ask::hello(hello(&token, "the-device")));
            client
        })
        .collect();
    node.metric_becomes("connections", 4.0);
    let lived: Vec<usize> = (0..LOGINS)
        .filter(|n| {
            let client = &mut clients[*n];
            client.say(ask::ping());
            loop {
                match client.take("a pong or a close", |_| true).body {
                    Some(crate::support::ServerBody::Pong(_)) => return true,
                    Some(crate::support::ServerBody::Close(close)) => {
                        assert_eq!(close.code, u32::from(Code::Replaced.number()), "{close:?}");
                        return false;
                    }
                    _ => {}
                }
            }
        })
        .collect();
    assert_eq!(lived.len(), 1, "one connection per device: {lived:?}");
    friend.text("one", "m1", "to the one");
    assert_eq!(text_of(&clients[lived[0]].expect_push()), "to the one");
    chat.end();
}
