//! Words of the demo: figures, durations and lists as people read them, and what the bots say. Pure.

use std::time::Duration;

use super::{
    judge::{Finding, Harm, Judgement},
    record::Counts,
};

/// Lines of the bots' talk, in turn.
const TALK: [&str; 16] = [
    "Is it high tide yet?",
    "Ten more minutes.",
    "Then I wait at the gate.",
    "The gate is still closed.",
    "I can see the first boat.",
    "The red one?",
    "The red one, with two sails.",
    "It comes every day at this time.",
    "How deep is the water now?",
    "Three metres and rising.",
    "That is enough for the boat.",
    "Open the gate, please.",
    "It opens.",
    "The boat is through.",
    "And the gate is closed again.",
    "Until the next tide, then.",
];

/// Returns what is said as the nth message of the talk.
pub(super) fn talk(nth: usize) -> &'static str {
    TALK[nth % TALK.len()]
}

/// Formats a short time.
pub(super) fn fine(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1_000.0;
    if ms < 9.95 {
        format!("{ms:.1} ms")
    } else if ms < 999.5 {
        format!("{ms:.0} ms")
    } else {
        format!("{:.1} s", ms / 1_000.0)
    }
}

/// Formats the time since the start.
pub(super) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds / 3_600 {
        0 => format!("{}:{:02}", seconds / 60, seconds % 60),
        hours => format!("{hours}:{:02}:{:02}", seconds / 60 % 60, seconds % 60),
    }
}

/// Formats a number of things, such as `2 messages`.
pub(super) fn plural(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Lists ascending seqs: `seq 7`, `seqs 7 to 9`, `seqs 7, 9 and 10`.
pub(super) fn seqs(seqs: &[u64]) -> String {
    match seqs {
        [] => "nothing".to_owned(),
        [one] => format!("seq {one}"),
        [first, .., last] if last - first == seqs.len() as u64 - 1 && seqs.len() > 2 => {
            format!("seqs {first} to {last}")
        }
        [all @ .., last] => {
            let all: Vec<String> = all.iter().map(u64::to_string).collect();
            format!("seqs {} and {last}", all.join(", "))
        }
    }
}

/// Returns the counts of what was sent.
pub(super) fn sent(counts: Counts) -> String {
    format!("sent {:<4} acked {:<4} delivered {:<4}", counts.sent, counts.acked, counts.delivered)
}

/// Returns the counts of what was broken.
pub(super) fn broken(judgement: &Judgement) -> String {
    let count = |harm| judgement.count(harm);
    let [lost, doubled, order] = [Harm::Lost, Harm::Doubled, Harm::OutOfOrder].map(count);
    let text = format!("lost {lost}  doubled {doubled}  out of order {order}");
    match count(Harm::Other) {
        0 => text,
        other => format!("{text}  other {other}"),
    }
}

/// Returns the sentence about a broken promise.
pub(super) fn finding(finding: &Finding) -> String {
    format!("BROKEN  {}: {}", finding.rule, finding.what)
}

/// Returns the verdict at the end. `sent` is the number of messages that were sent, `judged` of those that were judged
/// before; `is_checked` says that the last judgement was about all.
pub(super) fn verdict(is_good: bool, is_checked: bool, sent: usize, judged: usize) -> &'static str {
    match (is_good, is_checked) {
        (false, _) => "a promise was broken",
        (true, _) if sent == 0 => "nothing was sent, and nothing was judged",
        (true, true) => "no promise was broken: both histories agree with all that was sent, acked and shown",
        (true, false) if judged == 0 => "not checked: there was no time for a judgement",
        (true, false) => "no promise was broken up to the last judgement; what came after it was not checked",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        for (us, text) in [
            (0, "0.0 ms"),
            (1_440, "1.4 ms"),
            (9_949, "9.9 ms"),
            (9_950, "10 ms"),
            (312_400, "312 ms"),
            (999_499, "999 ms"),
            (999_500, "1.0 s"),
            (2_530_000, "2.5 s"),
        ] {
            assert_eq!(fine(Duration::from_micros(us)), text);
        }
        for (seconds, text) in [(4, "0:04"), (75, "1:15"), (3_599, "59:59"), (3_661, "1:01:01")] {
            assert_eq!(clock(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn seqs_are_listed_as_ranges_where_they_have_no_hole() {
        for (list, text) in [
            (&[][..], "nothing"),
            (&[7], "seq 7"),
            (&[7, 8], "seqs 7 and 8"),
            (&[7, 8, 9], "seqs 7 to 9"),
            (&[7, 9, 10], "seqs 7, 9 and 10"),
        ] {
            assert_eq!(seqs(list), text);
        }
    }

    #[test]
    fn other_harm_is_counted_only_where_there_is_some() {
        let mut judgement = Judgement::default();
        assert_eq!(broken(&judgement), "lost 0  doubled 0  out of order 0");
        for rule in ["never-got", "stored-twice", "slow-recovery"] {
            judgement.findings.insert(Finding { rule, what: String::new() });
        }
        assert_eq!(broken(&judgement), "lost 1  doubled 1  out of order 0  other 1");
        let counts = Counts { sent: 3, acked: 2, delivered: 1 };
        assert_eq!(sent(counts).trim_end(), "sent 3    acked 2    delivered 1");
    }

    #[test]
    fn verdict_claims_only_what_was_checked() {
        assert_eq!(verdict(false, true, 5, 5), "a promise was broken");
        assert!(verdict(true, true, 0, 0).starts_with("nothing was sent"));
        assert!(verdict(true, false, 0, 0).starts_with("nothing was sent"));
        assert!(verdict(true, true, 5, 0).contains("both histories agree with all"));
        assert!(verdict(true, false, 5, 4).contains("up to the last judgement"));
        assert!(verdict(true, false, 5, 0).starts_with("not checked"));
    }
}
