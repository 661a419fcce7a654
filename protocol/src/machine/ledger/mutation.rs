//! Planted faults: each breaks one rule of the ledger, and the simulation must catch it.

/// Fault in a rule of the ledger. Planted by tests, in builds with debug assertions only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Records of replaced connections are accepted.
    NoEpochCheck,
    /// A hole in the chain is not detected.
    NoChainCheck,
    /// The chain is checked before a retry is recognised.
    ChainBeforeDuplicate,
    /// The current membership is checked before a retry is recognised.
    MembershipBeforeDuplicate,
    /// A refused record does not take its chain number.
    RefusedKeepsNumber,
    /// A retry is compared only with the last positions, like a first attempt.
    AttemptIgnored,
    /// The dedup window counts milliseconds instead of positions.
    WindowByTime,
    /// A key with a time after the node's clock is ignored.
    ClockDecides,
    /// A `Rules` record without a dedup window resets the window.
    RulesReplaced,
    /// The permanent refusal of an unchained message is not remembered.
    UnchainedRefusalForgotten,
    /// The refusal of a membership request is not remembered.
    RequestRefusalForgotten,
    /// The refusal of an edit is not remembered.
    EditRefusalForgotten,
    /// The refusal of a denied message is not remembered.
    DenialForgotten,
    /// A silent message has an ordinal.
    SilentCounts,
    /// The operator needs a membership.
    OperatorNeedsMembership,
    /// The row of a transient message has its content.
    TransientStored,
    /// A recall is recognised by a row that retention removed, if it is still cached.
    PrunedRowAnswers,
}
