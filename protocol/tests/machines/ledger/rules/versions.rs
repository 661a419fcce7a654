//! Versions of the rules: one log, and what each version answers to it. Released versions never change.

use tidegate_protocol::machine::ledger::{LEDGER_NEWEST, kind_version};

use tidegate_protocol::record::mode::SILENT;

use super::{edits::edit, modes::moded, *};

/// Kinds of records by the version of the rules that introduced them. A new kind, or a new action, joins the list of a
/// version that no release has yet: nodes that do not know a kind skip its records, so two nodes that agree on the
/// rules would return different outcomes.
const KINDS: [(u32, &[&str]); LEDGER_NEWEST as usize] = [
    (
        1,
        &[
            "Create", "Delete", "Join", "Kick", "Leave", "Message", "Mute", "Prune", "Recall", "Role",
            "Rules", "Settings", "Unmute",
        ],
    ),
    (2, &[]),
    (3, &[]),
    (4, &[]),
    (5, &["Edit", "Moded message"]),
    (6, &["Edit denied by the application", "Message denied by the application"]),
];

/// Returns the name of a kind, and the next kind; a new one does not compile until it is added here.
fn kinds() -> BTreeMap<String, Body> {
    use MemberAction::{Create, Delete, Join, Kick, Leave, Mute, Role, Settings, Unmute};
    // The match is complete, so that a kind can't be left out of the list below it.
    let name = |body: &Body| match body {
        Body::Message(it) if it.mode.is_ordinary() => "Message".to_owned(),
        Body::Message(it) if is_of_application(it.mode.denied) => {
            "Message denied by the application".to_owned()
        }
        Body::Message(_) => "Moded message".to_owned(),
        Body::Edit(it) if is_of_application(it.denied) => "Edit denied by the application".to_owned(),
        Body::Edit(_) => "Edit".to_owned(),
        Body::Member(it) => match it.action {
            Create | Join | Leave | Kick | Role | Settings | Delete | Mute | Unmute => {
                format!("{:?}", it.action)
            }
        },
        Body::Recall(_) => "Recall".to_owned(),
        Body::Prune(_) => "Prune".to_owned(),
        Body::Rules(_) => "Rules".to_owned(),
    };
    let actions = [Create, Join, Leave, Kick, Role, Settings, Delete, Mute, Unmute];
    let changes = actions.map(|action| Body::Member(change(action, &["bob"], "ann", "q1")));
    let others = [
        Body::Message(message("g:a", "ann", "m1")),
        Body::Message(moded("g:a", "ann", "m1", MessageMode::of_flags(SILENT))),
        Body::Message(denied_message("m1")),
        Body::Edit(edit("g:a", 1, "ann", "e1")),
        Body::Edit(denied_edit("e1")),
        Body::Recall(Recall { conversation: conversation("g:a"), seq: 1, by: None }),
        Body::Prune(Prune { conversation: conversation("g:a"), up_to: 1 }),
        Body::Rules(RuleChange::default()),
    ];
    changes.into_iter().chain(others).map(|body| (name(&body), body)).collect()
}

const APPLICATION: Option<Code> = Code::from_number(5_001);

fn is_of_application(denied: Option<Code>) -> bool {
    matches!(denied, Some(Code::Application(_)))
}

fn denied_message(id: &str) -> Message {
    let mode = MessageMode { denied: APPLICATION, ..MessageMode::default() };
    moded("g:a", "ann", id, mode)
}

fn denied_edit(id: &str) -> Edit {
    Edit { denied: APPLICATION, ..edit("g:a", 4, "ann", id) }
}

#[test]
fn kp3_each_kind_of_record_has_the_version_that_introduced_it() {
    let mut by_version: BTreeMap<u32, Vec<String>> =
        (1..=LEDGER_NEWEST).map(|version| (version, Vec::new())).collect();
    for (name, body) in kinds() {
        let version = kind_version(&body);
        let list = by_version.get_mut(&version).expect("kinds belong to versions that this code implements");
        list.push(name);
    }
    let golden: BTreeMap<u32, Vec<String>> = KINDS
        .iter()
        .map(|(version, names)| (*version, names.iter().map(ToString::to_string).collect()))
        .collect();
    assert_eq!(by_version, golden);
}

/// Returns a log whose outcomes differ between any two versions.
fn log() -> Vec<Body> {
    let kick = |users: &[&str], request| Body::Member(change(MemberAction::Kick, users, "ann", request));
    let join = |request| Body::Member(change(MemberAction::Join, &["dan"], "ann", request));
    let say = |id, attempt| Body::Message(Message { attempt, ..message("g:a", "dan", id) });
    let rules = |keys_from| Body::Rules(RuleChange { keys_from, ..RuleChange::default() });
    vec![
        Body::Rules(RuleChange { dedup_window: Some(2), ..RuleChange::default() }),
        Body::Member(change(MemberAction::Create, &["bob"], "ann", "q1")),
        kick(&["dan"], "q2"),
        say("m1", 0),
        Body::Message(message("g:never", "dan", "m2")),
        join("q3"),
        kick(&["dan"], "q2"),
        say("m1", 1),
        say("m3", 0),
        rules(0),
        Body::Message(message("g:a", "ann", "m4")),
        rules(0),
        rules(0),
        // Beyond a window of 2, a first attempt is a new message.
        Body::Message(message("g:a", "ann", "m4")),
        Body::Message(moded(
            "g:a",
            "system",
            "m5",
            MessageMode { is_operator: true, ..MessageMode::default() },
        )),
        Body::Edit(edit("g:a", 4, "ann", "e1")),
        Body::Message(denied_message("m6")),
        Body::Message(Message { attempt: 1, ..denied_message("m6") }),
        Body::Edit(denied_edit("e2")),
        Body::Message(message("g:a", "ann", "m7")),
    ]
}

/// Outcomes of [`log`], in words.
fn outcomes(ledger_version: u32) -> Vec<String> {
    let mut it = Partition::new();
    it.put(Body::Rules(RuleChange { ledger_version, ..RuleChange::default() }));
    let word = |outcome| match outcome {
        Outcome::Accepted { seq, .. } => format!("seq {seq}"),
        Outcome::Duplicate { seq, .. } => format!("again {seq}"),
        Outcome::Refused { code } => code.name().to_owned(),
        Outcome::RefusedBefore { code } => format!("still {}", code.name()),
        Outcome::Void { newest } => format!("void {newest}"),
        Outcome::Noted => "noted".to_owned(),
    };
    log().into_iter().map(|body| word(it.put(body))).collect()
}

#[test]
fn each_version_answers_a_log_as_it_always_did() {
    let first = [
        "noted",
        "seq 1",
        "NOT_A_MEMBER",
        "NOT_A_MEMBER",
        "NOT_FOUND",
        "seq 2",
        "seq 3",
        "NOT_A_MEMBER",
        "NOT_A_MEMBER",
        "noted",
        "seq 4",
        "noted",
        "noted",
        "again 4",
        "NOT_YET",
        "NOT_YET",
        "NOT_YET",
        "NOT_YET",
        "NOT_YET",
        "seq 5",
    ];
    assert_eq!(outcomes(1), first);
    // From version 2 on the window stays, from version 3 on the first refusal counts.
    let second = [&first[..13], &["seq 5"], &first[14..19], &["seq 6"]].concat();
    assert_eq!(outcomes(2), second);
    let third = [&second[..7], &["still NOT_A_MEMBER"], &second[8..]].concat();
    assert_eq!(outcomes(3), third);
    let fourth = [
        "noted",
        "seq 1",
        "NOT_A_MEMBER",
        "NOT_A_MEMBER",
        "NOT_A_MEMBER",
        "seq 2",
        "still NOT_A_MEMBER",
        "still NOT_A_MEMBER",
        "seq 3",
        "noted",
        "seq 4",
        "noted",
        "noted",
        "seq 5",
        "NOT_YET",
        "NOT_YET",
        "NOT_YET",
        "NOT_YET",
        "NOT_YET",
        "seq 6",
    ];
    assert_eq!(outcomes(4), fourth);
    let fifth = [&fourth[..14], &["seq 6", "seq 7"], &fourth[16..19], &["seq 8"]].concat();
    assert_eq!(outcomes(5), fifth);
    let sixth = [&fifth[..16], &["APPLICATION", "still APPLICATION", "APPLICATION", "seq 8"]].concat();
    assert_eq!(outcomes(6), sixth);
}
