//! Planted faults: each breaks one rule of the ledger, and the simulation has to notice.

/// A rule to break. Takes effect only when the `mutants` feature is on, which only our own tests do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Records of replaced conns count.
    NoEpochCheck,
    /// A hole in the chain goes unnoticed.
    NoChainCheck,
    /// A retry is measured by its place in the chain before it is recognised.
    ChainBeforeDuplicate,
    /// A retry is measured by today's membership before it is recognised.
    MembershipBeforeDuplicate,
    /// A refused record leaves its number to the next one.
    RefusedKeepsNumber,
    /// A retry is looked for among the last positions only, like a first attempt.
    AttemptIgnored,
    /// The last W milliseconds instead of the last W positions.
    WindowByTime,
    /// A key from the future, by the node's clock, does not count.
    ClockDecides,
    /// A `Rules` record sets the window back that it does not name.
    RulesReplaced,
    /// A message without a chain that was refused for good is judged anew.
    LooseJudgedAnew,
}
