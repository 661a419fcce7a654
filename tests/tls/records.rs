//! Records: much content in both directions, clients that read slowly, and the end of a connection.

use rustls::version::TLS13;
use tidegate_protocol::{Code, codec::Wire};

use super::handshakes::{authority, offer};
use crate::{
    support::{Client, ClientBody, TestNode, ask, hello, text_of},
    tunnel::Tunnel,
};

#[test]
fn much_content_arrives_whole_and_in_order_also_at_a_slow_reader() {
    let authority = authority();
    let pair = authority.certify("node", &["tidegate.test"]);
    let node = TestNode::start(|config| {
        offer(config, &[pair]);
    });
    for (_, config) in authority.clients() {
        let tunnel = Tunnel::open(node.address(), "tidegate.test", config);
        let mut writer = Client::connect(tunnel.address, Wire::Tcp);
        writer.login(hello(&node.token("alice"), "w"));
        let user = format!("bob-{}", tunnel.address.port());
        let text = "x".repeat(30_000);
        for number in 0..100 {
            writer.text(&user, &format!("{user}-{number}"), &text);
        }
        // Pages are larger than the buffers of all sockets on the way, so that records wait for the reader.
        let mut reader = Client::connect(tunnel.address, Wire::Tcp);
        reader.login(hello(&node.token(&user), "r"));
        let (conversation, mut got) = (format!("d:alice:{user}"), 0);
        while got < 100 {
            let page = reader.page(ask::after(&conversation, got, 100));
            for push in page.messages {
                got += 1;
                assert_eq!((push.seq, push.msg_id.as_str()), (got, format!("{user}-{}", got - 1).as_str()));
                assert!(text_of(&push) == text, "content of {got}");
            }
        }
        reader.text("alice", &format!("{user}-back"), "read all of it");
        assert_eq!(text_of(&writer.expect_push()), "read all of it");
        for mut client in [writer, reader] {
            client.say_as(0, ClientBody::Bye(Default::default()));
            assert_eq!(client.expect_close(), Code::Bye);
        }
    }
}

#[test]
fn a_close_reaches_the_client_before_the_end_of_the_stream() {
    let authority = authority();
    let pair = authority.certify("node", &["tidegate.test"]);
    let node = TestNode::start(|config| offer(config, &[pair]));
    let tunnel = Tunnel::open(node.address(), "tidegate.test", authority.client(&[&TLS13]));
    let mut client = Client::connect(tunnel.address, Wire::JsonLine);
    let id = client.say(ask::hello(hello("no token", "d")));
    let _refusal = client.reply(id);
    assert_eq!(client.expect_close(), Code::TokenInvalid);
}
