//! Strategies that generate any frame, for property tests.

use proptest::{collection::btree_map, collection::vec, option, prelude::*};
use tidegate_protocol::{
    content::Content,
    pb::{self, client_frame, server_frame},
};

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[A-Za-z0-9_.:-]{0,12}",
        1 => vec(any::<char>(), 0..12).prop_map(String::from_iter),
    ]
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1..300u64, Just(1 << 53), Just((1 << 53) + 1), Just(u64::MAX), any::<u64>()]
}

fn small() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), 1..300u32, Just(u32::MAX), any::<u32>()]
}

fn kind() -> impl Strategy<Value = i32> {
    prop_oneof![4 => 0..7i32, 1 => any::<i32>()]
}

fn content() -> BoxedStrategy<Content> {
    // Boxed, because the strategies of frames are large values on the stack of a test.
    prop_oneof![
        3 => text().prop_map(Content::text),
        2 => vec(any::<u8>(), 0..40).prop_map(Content::data),
        1 => Just(Content::default()),
        1 => rich_content(),
    ]
    .boxed()
}

/// Generates content with every field.
fn rich_content() -> impl Strategy<Value = Content> {
    let json = prop::sample::select(&["", "7", r#"{"a":[1.50,"x"],"b":{}}"#, "\"😀\""][..]);
    (text(), text(), json, number(), vec(text(), 0..4)).prop_map(|(body, kind, json, reply_to, mentions)| {
        Content { kind, json: json.into(), reply_to, mentions, ..Content::text(body) }
    })
}

fn position() -> impl Strategy<Value = pb::Position> {
    (text(), number()).prop_map(|(conversation, seq)| pb::Position { conversation, seq })
}

fn positions() -> impl Strategy<Value = Vec<pb::Position>> {
    vec(position(), 0..4)
}

fn settings() -> impl Strategy<Value = pb::Settings> {
    (any::<bool>(), small(), small(), small(), text(), text(), text(), text()).prop_map(
        |(chain, ack_timeout_ms, ack_tries, heartbeat_ms, unread, retention, search, presence)| {
            pb::Settings {
                chain,
                ack_timeout_ms,
                ack_tries,
                heartbeat_ms,
                unread,
                retention,
                search,
                presence,
            }
        },
    )
}

fn hello() -> impl Strategy<Value = pb::Hello> {
    (small(), text(), text(), text(), text(), option::of(settings()), vec(text(), 0..3)).prop_map(
        |(version, token, device, resume, next_id, settings, features)| pb::Hello {
            version,
            token,
            device,
            resume,
            next_id,
            settings,
            features,
        },
    )
}

fn send() -> impl Strategy<Value = pb::Send> {
    (text(), text(), text(), text(), small(), option::of(content()), small(), text()).prop_map(
        |(conversation, to_user, msg_id, next_id, attempt, content, flags, traceparent)| pb::Send {
            conversation,
            to_user,
            msg_id,
            next_id,
            attempt,
            content,
            flags,
            traceparent,
        },
    )
}

fn signal() -> impl Strategy<Value = pb::Signal> {
    (text(), text(), text(), option::of(content()), text()).prop_map(
        |(conversation, to_user, kind, content, sender)| pb::Signal {
            conversation,
            to_user,
            kind,
            content,
            sender,
        },
    )
}

fn edit() -> BoxedStrategy<pb::Edit> {
    (text(), number(), option::of(content()), text())
        .prop_map(|(conversation, seq, content, msg_id)| pb::Edit { conversation, seq, content, msg_id })
        .boxed()
}

fn pull() -> impl Strategy<Value = pb::Pull> {
    (text(), number(), vec(number(), 0..5), small(), kind(), number()).prop_map(
        |(conversation, cursor, seqs, limit, direction, time)| pb::Pull {
            conversation,
            cursor,
            seqs,
            limit,
            direction,
            time,
        },
    )
}

fn pong() -> impl Strategy<Value = pb::Pong> {
    (positions(), number()).prop_map(|(positions, time)| pb::Pong { positions, time })
}

/// Generates any client frame.
pub(crate) fn client_frame() -> impl Strategy<Value = pb::ClientFrame> {
    use client_frame::Body;
    let body = prop_oneof![
        hello().prop_map(Body::Hello),
        send().prop_map(Body::Send),
        (text(), number()).prop_map(|(conversation, seq)| Body::Ack(pb::Ack { conversation, seq })),
        (text(), number()).prop_map(|(conversation, seq)| Body::Read(pb::Read { conversation, seq })),
        positions().prop_map(|positions| Body::Ping(pb::Ping { positions })),
        positions().prop_map(|positions| Body::Sync(pb::Sync { positions })),
        pull().prop_map(Body::Pull),
        text().prop_map(|room| Body::Join(pb::Join { room })),
        (text(), text()).prop_map(|(room, conversation)| Body::Leave(pb::Leave { room, conversation })),
        pong().prop_map(Body::Pong),
        (text(), number()).prop_map(|(conversation, seq)| Body::Recall(pb::Recall { conversation, seq })),
        (text(), number()).prop_map(|(conversation, seq)| Body::Clear(pb::Clear { conversation, seq })),
        (text(), vec(number(), 0..5))
            .prop_map(|(conversation, seqs)| Body::Hide(pb::Hide { conversation, seqs })),
        signal().prop_map(Body::Signal),
        edit().prop_map(Body::Edit),
        text().prop_map(|token| Body::Refresh(pb::Refresh { token })),
        (text(), text()).prop_map(|(room, kind)| Body::React(pb::React { room, kind })),
        (text(), any::<bool>())
            .prop_map(|(conversation, stop)| Body::Watch(pb::Watch { conversation, stop })),
        Just(Body::NextId(pb::NextId {})),
        Just(Body::Bye(pb::Bye {})),
    ];
    (number(), option::weighted(0.95, body)).prop_map(|(id, body)| pb::ClientFrame { id, body })
}

fn event() -> impl Strategy<Value = pb::MemberEvent> {
    (kind(), vec(text(), 0..3), text(), btree_map(text(), text(), 0..3))
        .prop_map(|(change, users, role, settings)| pb::MemberEvent { change, users, role, settings })
}

/// Generates any push.
pub(crate) fn push() -> impl Strategy<Value = pb::Push> {
    let recall = option::weighted(0.1, number().prop_map(|seq| pb::RecallEvent { seq }));
    let edit = (number(), option::of(content())).prop_map(|(seq, content)| pb::EditEvent { seq, content });
    let edited = (number(), number()).prop_map(|(seq, time)| pb::Edited { seq, time });
    let rest = (option::weighted(0.1, edit), option::weighted(0.1, edited), small()).boxed();
    (
        text(),
        number(),
        text(),
        text(),
        number(),
        option::of(content()),
        option::weighted(0.2, event()),
        recall,
        rest,
    )
        .prop_map(|(conversation, seq, sender, msg_id, time, content, event, recall, rest)| pb::Push {
            conversation,
            seq,
            sender,
            msg_id,
            time,
            content,
            event,
            recall,
            edit: rest.0,
            edited: rest.1,
            flags: rest.2,
        })
}

fn send_ack() -> impl Strategy<Value = pb::SendAck> {
    (text(), text(), number(), number(), any::<bool>()).prop_map(
        |(conversation, msg_id, seq, time, duplicate)| pb::SendAck {
            conversation,
            msg_id,
            seq,
            time,
            duplicate,
        },
    )
}

fn error() -> impl Strategy<Value = pb::Error> {
    (small(), text(), text(), any::<bool>(), small(), btree_map(text(), text(), 0..3)).prop_map(
        |(code, name, message, temporary, retry_after_ms, detail)| pb::Error {
            code,
            name,
            message,
            temporary,
            retry_after_ms,
            detail,
        },
    )
}

fn limits() -> impl Strategy<Value = pb::Limits> {
    (small(), small(), small(), small(), small()).prop_map(
        |(frame_bytes_max, content_bytes_max, hold_max, hold_bytes_max, in_flight_max)| pb::Limits {
            frame_bytes_max,
            content_bytes_max,
            hold_max,
            hold_bytes_max,
            in_flight_max,
        },
    )
}

fn welcome() -> impl Strategy<Value = pb::Welcome> {
    let names = (text(), text(), text());
    let lists = (option::of(settings()), vec(text(), 0..3));
    (names, small(), option::of(limits()), number(), option::of(any::<bool>()), lists).prop_map(
        |((session, node, next_id), heartbeat_ms, limits, server_time, resumed, (settings, features))| {
            pb::Welcome {
                session,
                node,
                heartbeat_ms,
                limits,
                server_time,
                next_id,
                resumed,
                settings,
                features,
            }
        },
    )
}

fn notice() -> impl Strategy<Value = pb::Notice> {
    let texts = (text(), text(), text(), text());
    let storm = (small(), small(), number(), number(), text(), number());
    (kind(), texts, storm).prop_map(|(kind, texts, storm)| {
        let (expected, msg_id, conversation, message) = texts;
        let (count, threshold, window_ms, since, action, interval_ms) = storm;
        pb::Notice {
            kind,
            expected,
            msg_id,
            conversation,
            message,
            count,
            threshold,
            window_ms,
            since,
            action,
            interval_ms,
        }
    })
}

fn go_away() -> impl Strategy<Value = pb::GoAway> {
    (small(), small(), vec(text(), 0..3), text()).prop_map(|(after_ms, window_ms, alternates, reason)| {
        pb::GoAway { after_ms, window_ms, alternates, reason }
    })
}

fn close() -> impl Strategy<Value = pb::Close> {
    (small(), text(), text(), kind(), small()).prop_map(|(code, name, reason, reconnect, after_ms)| {
        pb::Close { code, name, reason, reconnect, after_ms }
    })
}

fn page() -> impl Strategy<Value = pb::Page> {
    let range = (number(), number()).prop_map(|(first, last)| pb::SeqRange { first, last });
    (text(), vec(push(), 0..3), vec(number(), 0..4), vec(range, 0..3), number()).prop_map(
        |(conversation, messages, recalled, expired, complete_to)| pb::Page {
            conversation,
            messages,
            recalled,
            expired,
            complete_to,
        },
    )
}

fn state() -> impl Strategy<Value = pb::ConversationState> {
    (text(), number(), number(), number(), number(), option::of(push()), number(), vec(number(), 0..4))
        .prop_map(|(conversation, max_seq, min_seq, read_seq, unread, last, cleared_seq, hidden)| {
            pb::ConversationState {
                conversation,
                max_seq,
                min_seq,
                read_seq,
                unread,
                last,
                cleared_seq,
                hidden,
            }
        })
}

fn room_stats() -> impl Strategy<Value = pb::RoomStats> {
    let sum =
        (text(), number(), number()).prop_map(|(kind, sum, total)| pb::ReactionSum { kind, sum, total });
    (text(), number(), option::of(number()), vec(sum, 0..3))
        .prop_map(|(room, left_out, members, reactions)| pb::RoomStats { room, left_out, members, reactions })
}

fn presence() -> impl Strategy<Value = pb::Presence> {
    (text(), vec(text(), 0..4), vec(text(), 0..4), any::<[bool; 2]>()).prop_map(
        |(conversation, online, offline, [complete, ended])| pb::Presence {
            conversation,
            online,
            offline,
            complete,
            ended,
        },
    )
}

/// Generates any server frame.
pub(crate) fn server_frame() -> impl Strategy<Value = pb::ServerFrame> {
    use server_frame::Body;
    let receipt = (text(), text(), number());
    let body = prop_oneof![
        push().prop_map(Body::Push),
        send_ack().prop_map(Body::SendAck),
        error().prop_map(Body::Error),
        pong().prop_map(Body::Pong),
        welcome().prop_map(Body::Welcome),
        (text(), number())
            .prop_map(|(conversation, max_seq)| Body::Behind(pb::Behind { conversation, max_seq })),
        (text(), number()).prop_map(|(room, count)| Body::Shed(pb::Shed { room, count })),
        notice().prop_map(Body::Notice),
        go_away().prop_map(Body::GoAway),
        close().prop_map(Body::Close),
        page().prop_map(Body::Page),
        state().prop_map(Body::ConversationState),
        receipt.prop_map(|(conversation, user, seq)| Body::Receipt(pb::Receipt { conversation, user, seq })),
        text().prop_map(|next_id| Body::NextIdIs(pb::NextIdIs { next_id })),
        positions().prop_map(|positions| Body::Ping(pb::Ping { positions })),
        Just(Body::Done(pb::Done {})),
        number().prop_map(|unread| Body::SyncEnd(pb::SyncEnd { unread })),
        (text(), number()).prop_map(|(conversation, seq)| Body::Cleared(pb::Cleared { conversation, seq })),
        (text(), vec(number(), 0..5))
            .prop_map(|(conversation, seqs)| Body::Hidden(pb::Hidden { conversation, seqs })),
        signal().prop_map(Body::Signal),
        room_stats().prop_map(Body::RoomStats),
        presence().prop_map(Body::Presence),
    ];
    (number(), option::weighted(0.95, body)).prop_map(|(id, body)| pb::ServerFrame { id, body })
}
