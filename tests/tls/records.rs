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
        config.limits.outbox_bytes_max = 64 << 20;
        config.timing.write_ms = 60_000;
        config.timing.ack_timeout_ms = 60_000;
    });
    for (_, config) in authority.clients() {
        let tunnel = Tunnel::open(node.address(), "tidegate.test", config);
        let mut writer = Client::connect(tunnel.address, Wire::Tcp);
        writer.login(hello(&node.token("alice"), "w"));
        let mut reader = Client::connect(tunnel.address, Wire::Tcp);
        reader.login(hello(&node.token("bob"), "r"));
        // More than the buffers of all sockets on the way hold, so that records wait for the reader.
        let text = "x".repeat(30_000);
        let ids: Vec<String> = (0..120).map(|number| format!("{}-{number}", tunnel.address.port())).collect();
        for id in &ids {
            writer.text("bob", id, &text);
        }
        for id in &ids {
            let push = reader.expect_push();
            assert_eq!((&push.msg_id, text_of(&push).len()), (id, text.len()));
            reader.say_as(0, ask::ack(&push.conversation, push.seq));
        }
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
