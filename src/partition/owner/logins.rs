//! Users who log in, where one owner has the whole log and knows memberships in its order.

use std::{collections::BTreeSet, pin::pin};

use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::Outcome,
    record::{Body, MemberAction},
};
use tokio::sync::mpsc;

use super::{Decided, Owner};
use crate::{
    delivery::local::Outbound,
    login,
    mail::ConnKey,
    partition::exit::{GivenUp, retry},
    ports::Ports,
    routes::Route,
};

/// Where logins come from; none = they are none of this owner's.
pub(super) type Logins = Option<mpsc::Receiver<Vec<(ConnKey, Route)>>>;

/// Who comes into which group by what is decided and not told yet. Telling it puts them into the indexes, in log order: whoever
/// put them there earlier would have them told what was said before they came.
type Newcomers<'a> = BTreeSet<(&'a ConversationId, &'a UserId)>;

impl Owner {
    /// The groups of users who log in, as of everything decided so far (DESIGN 6.4, reader at login).
    pub(super) async fn answer_logins(
        &self,
        logins: Vec<(ConnKey, Route)>,
        out: &mut Outbound,
    ) -> Result<(), GivenUp> {
        answer(&self.ports, logins, &Newcomers::new(), out).await
    }

    /// Archives everything decided. Logins are answered meanwhile: a disk that is full can be read.
    pub(super) async fn archive_all(
        &mut self,
        decided: &[Decided],
        logins: &mut Logins,
        out: &mut Outbound,
    ) -> Result<(), GivenUp> {
        let mut all = pin!(self.archive.all(&mut self.ledger));
        loop {
            tokio::select! {
                biased;
                done = &mut all => return done,
                Some(batch) = next(logins) => answer(&self.ports, batch, &newcomers(decided), out).await?,
            }
        }
    }
}

/// The next users who log in; never, where they are none of an owner's.
pub(super) async fn next(logins: &mut Logins) -> Option<Vec<(ConnKey, Route)>> {
    match logins {
        Some(logins) => logins.recv().await,
        None => std::future::pending().await,
    }
}

async fn answer(
    ports: &Ports,
    logins: Vec<(ConnKey, Route)>,
    newcomers: &Newcomers<'_>,
    out: &mut Outbound,
) -> Result<(), GivenUp> {
    for (key, route) in logins {
        let groups = retry(|| login::groups_of(&*ports.store, &route.user)).await?;
        let groups = groups.into_iter().map(|it| it.group);
        let groups = groups.filter(|group| !newcomers.contains(&(group, &route.user))).collect();
        out.memberships(key, groups).await;
    }
    Ok(())
}

fn newcomers(decided: &[Decided]) -> Newcomers<'_> {
    let mut newcomers = Newcomers::new();
    for (record, outcome) in decided {
        if let (Body::Member(change), Outcome::Accepted { .. }) = (&record.body, outcome)
            && matches!(change.action, MemberAction::Create | MemberAction::Join)
        {
            newcomers.extend(change.users.iter().map(|user| (&change.conversation, user)));
        }
    }
    newcomers
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
    fn who_comes_in_by_what_is_not_told_yet_is_put_into_the_group_when_it_is_told() {
        let accepted = Outcome::Accepted { seq: 1, ordinal: 0, time: 1 };
        let all = [
            decided(MemberAction::Create, "ann", accepted),
            decided(MemberAction::Join, "bob", accepted),
            decided(MemberAction::Join, "eve", Outcome::Refused { code: Code::Forbidden }),
            decided(MemberAction::Mute, "cid", accepted),
        ];
        let names: Vec<&str> = newcomers(&all).into_iter().map(|(_, user)| user.as_str()).collect();
        assert_eq!(names, ["ann", "bob"]);
    }
}
