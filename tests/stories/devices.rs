//! One connection per user and device: the newest wins; several devices of one user all get everything.

use std::{
    sync::Barrier,
    time::{Duration, Instant},
};

use tidegate_protocol::{Code, codec::Wire, pb};

use crate::support::{Client, ServerBody, TestNode, WAIT_MAX, ask, eventually, hello, send, text_of};

/// Sends from `bob` and expects the push at `client`.
fn expect_text_of(client: &mut Client, bob: &mut Client, msg_id: &str) {
    let seq = bob.text("alice", msg_id, msg_id);
    let push = client.expect_push();
    assert_eq!((push.seq, text_of(&push)), (seq, msg_id));
    client.ack(&push.conversation, push.seq);
}

/// Flaws S1 and S2: the late end of the old connection must not remove the new route.
#[test]
fn late_end_of_a_replaced_connection_keeps_the_new_route() {
    let node = TestNode::start(|config| config.timing.linger_ms = 1_000);
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    for (round, wire) in Wire::ALL.into_iter().enumerate() {
        let mut old = node.login(wire, "alice", "phone");
        expect_text_of(&mut old, &mut bob, &format!("to-old-{round}"));
        let mut new = node.login(Wire::ALL[(round + 1) % 4], "alice", "phone");
        expect_text_of(&mut new, &mut bob, &format!("to-new-{round}"));
        assert_eq!(old.expect_close(), Code::Replaced, "{wire:?}");
        drop(old);
        // The node has removed the old connection by now, later than it learned of the new one.
        eventually("only bob and the new connection", || (node.conns() == 2).then_some(()));
        expect_text_of(&mut new, &mut bob, &format!("after-{round}"));
        new.no_push();
        drop(new);
        eventually("only bob", || (node.conns() == 1).then_some(()));
    }
}

#[test]
fn x2_further_device_of_a_user_is_refused() {
    let node = TestNode::start(|config| config.limits.devices_per_user = 2);
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let mut phone = node.login(Wire::Tcp, "alice", "phone");
    let web = node.login(Wire::WsText, "alice", "web");
    for wire in Wire::ALL {
        let mut watch = Client::connect(node.address(), wire);
        watch.say(ask::hello(hello(&node.token("alice"), "watch")));
        assert_eq!(watch.expect_close(), Code::TooManyDevices, "{wire:?}");
    }
    expect_text_of(&mut phone, &mut bob, "m1");
    let mut again = node.login(Wire::JsonLine, "alice", "phone");
    assert_eq!(phone.expect_close(), Code::Replaced, "a connected device may log in again");
    drop(web);
    eventually("the web device is disconnected", || (node.conns() == 2).then_some(()));
    let mut watch = node.login(Wire::Tcp, "alice", "watch");
    let seq = bob.text("alice", "m2", "both");
    assert_eq!([&mut again, &mut watch].map(|client| client.expect_push().seq), [seq; 2]);
}

#[test]
fn each_of_many_logins_replaces_its_predecessor_once() {
    let node = TestNode::start(|config| config.node.shards = 3);
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let mut clients: Vec<Client> = (0..12).map(|n| node.login(Wire::ALL[n % 4], "alice", "phone")).collect();
    let mut newest = clients.pop().expect("twelve");
    for mut old in clients {
        assert_eq!(old.expect_close(), Code::Replaced);
    }
    expect_text_of(&mut newest, &mut bob, "m1");
}

#[test]
fn concurrent_logins_of_a_device_leave_one_connection() {
    let node = TestNode::start(|config| {
        config.node.shards = 3;
        config.timing.linger_ms = 20;
    });
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    for round in 0..20 {
        let clients: Vec<Client> = (0..3).map(|n| node.connect(Wire::ALL[(n + round) % 4])).collect();
        let together = Barrier::new(clients.len());
        let login = |mut client: Client| {
            together.wait();
            client.say(ask::hello(hello(&node.token("alice"), "phone")));
            // Either a Welcome, or the Close of a connection that was replaced before it.
            client.pump(Instant::now() + WAIT_MAX);
            client
        };
        let clients: Vec<Client> = std::thread::scope(|scope| {
            let threads: Vec<_> = clients.into_iter().map(|client| scope.spawn(|| login(client))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a login")).collect()
        });
        eventually("bob and one more connection", || (node.conns() == 2).then_some(()));
        bob.text("alice", &format!("m{round}"), "who is left?");
        let mut pushes_seen = 0;
        for mut client in clients {
            let is_push = |frame: &pb::ServerFrame| matches!(frame.body, Some(ServerBody::Push(_)));
            // The remaining connection gets the push, the others their end.
            while !client.inbox.iter().any(is_push) && client.pump(Instant::now() + WAIT_MAX) {}
            if client.ended.is_none() {
                client.expect_push();
                pushes_seen += 1;
            } else {
                assert_eq!(client.expect_close(), Code::Replaced);
            }
        }
        assert_eq!(pushes_seen, 1);
        eventually("bob alone", || (node.conns() == 1).then_some(()));
    }
}

#[test]
fn all_devices_get_a_message_except_the_sending_connection() {
    let node = TestNode::start(|config| config.node.shards = 3);
    let mut phones: Vec<Client> =
        Wire::ALL.map(|wire| node.login(wire, "alice", &format!("{wire:?}"))).into();
    let mut bobs: Vec<Client> = Wire::ALL.map(|wire| node.login(wire, "bob", &format!("{wire:?}"))).into();
    for sender in 0..4 {
        let text = format!("from device {sender}");
        let seq = phones[sender].text("bob", &format!("m{sender}"), &text);
        for (index, client) in phones.iter_mut().chain(&mut bobs).enumerate() {
            if index == sender {
                client.no_push();
                continue;
            }
            let push = client.expect_push();
            assert_eq!((push.seq, push.sender.as_str(), text_of(&push)), (seq, "alice", text.as_str()));
            assert_eq!(push.conversation, "d:alice:bob");
        }
    }
}

#[test]
fn message_to_oneself_reaches_the_other_devices_once() {
    let node = TestNode::start(|_| {});
    let mut phone = node.login(Wire::JsonLine, "alice", "phone");
    let mut laptop = node.login(Wire::WsText, "alice", "laptop");
    let ack = phone.send(send("alice", "m1", "milk"));
    assert_eq!((ack.conversation.as_str(), ack.seq), ("d:alice:alice", 1));
    assert_eq!(text_of(&laptop.expect_push()), "milk");
    laptop.no_push();
    phone.no_push();
}

#[test]
fn replaced_connection_gets_nothing_more() {
    let node = TestNode::start(|_| {});
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let mut old = node.login(Wire::Tcp, "alice", "phone");
    let mut new = node.login(Wire::Tcp, "alice", "phone");
    assert_eq!(old.take("a close", |frame| frame.id == 0).id, 0);
    old.say(ask::send(send("bob", "late", "from the old one")));
    new.text("bob", "m1", "from the new one");
    assert_eq!(text_of(&bob.expect_push()), "from the new one");
    bob.no_push();
}

fn login_all(node: &TestNode, devices: &[&str]) -> Vec<Client> {
    let login = |(nth, device): (usize, &&str)| node.login(Wire::ALL[nth % 4], "alice", device);
    devices.iter().enumerate().map(login).collect()
}

/// Asserts that these clients are connected, and get a message.
fn expect_connected(bob: &mut Client, msg_id: &str, clients: &mut [Client]) {
    let seq = bob.text("alice", msg_id, msg_id);
    for client in clients {
        assert_eq!(client.expect_push().seq, seq);
        client.ack("d:alice:bob", seq);
    }
}

#[test]
fn newer_device_of_a_class_replaces_the_older_one() {
    let node = TestNode::start(|config| {
        config.login.devices = "class".into();
        config.node.shards = 3;
    });
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let mut first = login_all(&node, &["phone-a1b2", "desktop", "web-7f3a"]);
    expect_connected(&mut bob, "m1", &mut first);
    let mut second = login_all(&node, &["phone-c3d4", "desktop-x", "web-99cc"]);
    for old in &mut first {
        assert_eq!(old.expect_close(), Code::Replaced);
    }
    expect_connected(&mut bob, "m2", &mut second);
    eventually("bob and one of each class", || (node.conns() == 4).then_some(()));
}

#[test]
fn one_session_of_a_user_stays() {
    let node = TestNode::start(|config| config.login.devices = "user".into());
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let mut all = login_all(&node, &["phone", "desktop", "web", "phone"]);
    let mut last = all.split_off(3);
    for old in &mut all {
        assert_eq!(old.expect_close(), Code::Replaced);
    }
    expect_connected(&mut bob, "m1", &mut last);
}

/// Tabs with devices of their own, as the TypeScript client names them.
#[test]
fn tabs_of_a_browser_do_not_replace_each_other() {
    for devices in ["each", "class", "user"] {
        let node = TestNode::start(|config| config.login.devices = devices.into());
        let mut bob = node.login(Wire::Tcp, "bob", "phone");
        let mut tabs = login_all(&node, &["web-7f3a-1", "web-7f3a-2", "web-7f3a-3"]);
        expect_connected(&mut bob, "m1", &mut tabs);
        let mut other = login_all(&node, &["web-99cc-1"]);
        if devices == "each" {
            expect_connected(&mut bob, "m2", &mut tabs);
        } else {
            for tab in &mut tabs {
                assert_eq!(tab.expect_close(), Code::Replaced, "another browser: {devices}");
            }
            expect_connected(&mut bob, "m2", &mut other);
        }
    }
}

#[test]
fn further_device_replaces_the_oldest_session_if_the_node_says_so() {
    let node = TestNode::start(|config| {
        config.limits.devices_per_user = 2;
        config.login.devices_full = "replace".into();
    });
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let mut all = login_all(&node, &["phone", "web", "watch"]);
    assert_eq!(all.remove(0).expect_close(), Code::Replaced);
    expect_connected(&mut bob, "m1", &mut all);
}

#[test]
fn concurrent_logins_of_a_user_leave_one_session() {
    let node = TestNode::start(|config| {
        config.node.shards = 3;
        config.login.devices = "user".into();
        config.limits.user_logins_per_second = 0;
    });
    for round in 0..20 {
        let clients: Vec<Client> = (0..4).map(|n| node.connect(Wire::ALL[(n + round) % 4])).collect();
        let together = Barrier::new(clients.len());
        let login = |(nth, mut client): (usize, Client)| {
            together.wait();
            client.say(ask::hello(hello(&node.token("alice"), &format!("device-{nth:04}"))));
            client.pump(Instant::now() + WAIT_MAX);
            client
        };
        let mut clients: Vec<Client> = std::thread::scope(|scope| {
            let all = clients.into_iter().enumerate();
            let threads: Vec<_> = all.map(|one| scope.spawn(|| login(one))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a login")).collect()
        });
        eventually("one session", || (node.conns() == 1).then_some(()));
        let is_closed = |client: &mut Client| {
            client.listen(Duration::from_millis(20));
            client.ended.is_some()
        };
        clients.retain_mut(|client| {
            let closed = is_closed(client);
            if closed {
                assert_eq!(client.expect_close(), Code::Replaced);
            }
            !closed
        });
        assert_eq!(clients.len(), 1, "round {round}");
        drop(clients);
        eventually("none", || (node.conns() == 0).then_some(()));
    }
}
