//! Archive step of a batch, between its decisions and their publication.

use std::pin::pin;

use super::{
    Decided, Owner,
    logins::{self, Logins},
};
use crate::partition::{dispatcher::Dispatcher, exit::OwnerExit};

impl Owner {
    /// Archives everything decided. Logins are answered in the meantime, because a full disk can still be read.
    pub(super) async fn archive_all(
        &mut self,
        decided: &[Decided],
        logins: &mut Logins,
        out: &mut Dispatcher,
    ) -> Result<(), OwnerExit> {
        let mut flush = pin!(self.archive.flush(&mut self.ledger));
        loop {
            tokio::select! {
                biased;
                done = &mut flush => return done,
                Some(batch) = logins::next(logins) => {
                    logins::answer(&self.cluster, batch, &logins::pending_joins(decided), out).await?;
                }
            }
        }
    }
}
