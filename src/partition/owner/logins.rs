//! Logins on a single node, whose owner reads the whole log and so knows memberships in log order.

use std::collections::BTreeSet;

use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::Outcome,
    record::{Body, MemberAction},
};
use tokio::sync::mpsc;

use super::{Decided, Owner};
use crate::{
    cluster::Cluster,
    delivery::memberships,
    mail::ConnKey,
    partition::{
        dispatcher::Dispatcher,
        exit::{OwnerExit, retry},
    },
    routes::Route,
};

/// Source of logins; `None` if this owner does not answer them.
pub(super) type Logins = Option<mpsc::Receiver<Vec<(ConnKey, Route)>>>;

/// Memberships added by decided but unpublished records. Publishing adds them to the indexes in log order; adding them
/// at the login would push messages from before the join to the user.
pub(super) type PendingJoins<'a> = BTreeSet<(&'a ConversationId, &'a UserId)>;

impl Owner {
    /// Answers logins with their groups, as of everything decided so far. Routes are registered before, so either this
    /// read shows a change or its publisher finds the route.
    pub(super) async fn answer_logins(
        &self,
        logins: Vec<(ConnKey, Route)>,
        out: &mut Dispatcher,
    ) -> Result<(), OwnerExit> {
        answer(&self.cluster, logins, &PendingJoins::new(), out).await
    }
}

/// Waits for the next logins; never ready if this owner does not answer them.
pub(super) async fn next(logins: &mut Logins) -> Option<Vec<(ConnKey, Route)>> {
    match logins {
        Some(logins) => logins.recv().await,
        None => std::future::pending().await,
    }
}

/// Answers logins, leaving out the groups of `pending_joins`.
pub(super) async fn answer(
    cluster: &Cluster,
    logins: Vec<(ConnKey, Route)>,
    pending_joins: &PendingJoins<'_>,
    out: &mut Dispatcher,
) -> Result<(), OwnerExit> {
    for (key, route) in logins {
        let groups = retry(|| memberships::groups_of(&*cluster.ports.store, &route.user)).await?;
        let groups = groups.into_iter().map(|it| it.group);
        let groups = groups.filter(|group| !pending_joins.contains(&(group, &route.user))).collect();
        out.memberships(key, groups).await;
    }
    Ok(())
}

/// Returns the memberships that decided but unpublished records add.
pub(super) fn pending_joins(decided: &[Decided]) -> PendingJoins<'_> {
    let mut pending_joins = PendingJoins::new();
    for (record, outcome) in decided {
        if let (Body::Member(change), Outcome::Accepted { .. }) = (&record.body, outcome)
            && matches!(change.action, MemberAction::Create | MemberAction::Join)
        {
            pending_joins.extend(change.users.iter().map(|user| (&change.conversation, user)));
        }
    }
    pending_joins
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tidegate_protocol::{
        Code,
        id::{MsgId, NodeId},
        record::{MemberChange, Origin, Record},
    };

    use super::*;

    fn decided(action: MemberAction, user: &str, outcome: Outcome) -> Decided {
        let change = MemberChange {
            conversation: ConversationId::parse("g:tea").unwrap(),
            action,
            users: vec![UserId::new(user).unwrap()],
            role: None,
            by: None,
            settings: BTreeMap::new(),
            request_id: MsgId::new("r1").unwrap(),
        };
        let origin = Origin { node: NodeId::new("n1").unwrap(), boot: 1, conn: 1, request: 1 };
        (Record { origin, received_at: 1, body: Body::Member(change), trace: None }, outcome)
    }

    #[test]
    fn login_leaves_out_groups_of_unpublished_joins() {
        let accepted = Outcome::Accepted { seq: 1, ordinal: 0, time: 1 };
        let all = [
            decided(MemberAction::Create, "ann", accepted),
            decided(MemberAction::Join, "bob", accepted),
            decided(MemberAction::Join, "eve", Outcome::Refused { code: Code::Forbidden }),
            decided(MemberAction::Mute, "cid", accepted),
        ];
        let names: Vec<&str> = pending_joins(&all).into_iter().map(|(_, user)| user.as_str()).collect();
        assert_eq!(names, ["ann", "bob"]);
    }
}
