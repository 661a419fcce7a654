//! Marker of a restriction in the settings of its group, by which it is undone.

use std::fmt;

use tidegate_protocol::{machine::ledger::Head, settings::STORM_POST};

/// Restriction of a storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Restriction {
    /// Seq of the storm.
    pub(super) seq: u64,
    /// Times that an operator had replaced the action before, so that a storm can be restricted again.
    pub(super) changes: u32,
}

/// The first restriction of a storm is written as its seq, which older versions read.
impl fmt::Display for Restriction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.changes {
            0 => write!(f, "{}", self.seq),
            changes => write!(f, "{}.{changes}", self.seq),
        }
    }
}

/// Value of `post` before a restriction.
pub(super) struct Marker<'a> {
    pub(super) before: &'a str,
    pub(super) restriction: Restriction,
}

impl<'a> Marker<'a> {
    /// Reads the marker of a group; `None` if it has none.
    pub(super) fn of(head: &'a Head) -> Option<Self> {
        let (before, text) = head.settings.get(STORM_POST)?.rsplit_once('@')?;
        let (seq, changes) = text.split_once('.').unwrap_or((text, "0"));
        let restriction = Restriction { seq: seq.parse().ok()?, changes: changes.parse().ok()? };
        Some(Self { before, restriction })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_names_the_former_setting_the_storm_and_how_often_it_was_changed() {
        for (text, expected) in [
            ("@102", Some(("", 102, 0))),
            ("all@102.3", Some(("all", 102, 3))),
            ("all", None),
            ("all@x", None),
            ("all@1.x", None),
        ] {
            let settings = std::collections::BTreeMap::from([(STORM_POST.to_owned(), text.to_owned())]);
            let head = Head { settings: settings.into(), ..Head::default() };
            let found = Marker::of(&head);
            let found = found.map(|it| (it.before, it.restriction.seq, it.restriction.changes));
            assert_eq!(found, expected, "{text}");
        }
        assert_eq!(Restriction { seq: 102, changes: 0 }.to_string(), "102", "as older versions write it");
    }
}
