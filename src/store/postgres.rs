//! `Store` on Postgres: what the nodes of a cluster archive, and the floors of their numbers (ADR 10).
//!
//! An archive is one transaction that moves the position under the fence first: that row is the lock of the partition.
//! Reads are one snapshot each, in one turn to the server. See docs/postgres.md for the tables.

mod archive;
mod batcher;
mod codec;
mod connect;
mod error;
mod import_lock;
mod key_partitions;
mod marks;
mod migrate;
mod number_blocks;
mod owner;
mod queries;
mod row_loader;
mod session;

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use async_trait::async_trait;
use deadpool_postgres::Pool;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::{Delta, Loaded, Member, Need},
    settings::UserSettings,
};

use self::{
    batcher::{Conversations, Gather, Portion, Save, Summaries, Wishes, send},
    connect::Source,
    error::Trouble,
    key_partitions::Weeks,
    owner::Archive,
    row_loader::Load,
    session::Session,
};
pub use self::{connect::OpenError, import_lock::Importing};
use super::{
    Fence, Membership, Page, PageQuery, Personal, Scan, Snapshot, Store, StoreError, Summary, TakenOver,
};
use crate::{
    bus::TopicId,
    config,
    scratch::{Block, FloorError, Floors},
};

/// How often a transaction is tried that others were in the way of.
const TRIES: u32 = 6;

/// After the first such try; twice as long after each.
const BACK_OFF: Duration = Duration::from_millis(2);

/// What the network may take on top of what the server may.
const NETWORK: Duration = Duration::from_millis(500);

/// The store of profile `cluster`.
pub struct PostgresStore {
    core: Arc<Core>,
}

struct Core {
    /// Apart from each other: what 15,000 people ask who come back at once must not stand before an archive.
    owners: Pool,
    readers: Pool,
    /// For one turn to the server.
    wait: Duration,
    weeks: Weeks,
    saves: Gather<Save>,
    conversations: Gather<Conversations>,
    summaries: Gather<Summaries>,
    wishes: Gather<Wishes>,
    loads: Gather<Load>,
    portions: Gather<Portion>,
    /// One drop of old weeks at a time.
    dropping: tokio::sync::Mutex<()>,
}

impl PostgresStore {
    /// Connects, and makes the tables or brings them up to date; several nodes may do so at once.
    ///
    /// # Errors
    /// What is wrong with the configuration or the tables; [`OpenError::Away`] may be tried again.
    pub async fn open(config: &config::Postgres) -> Result<Self, OpenError> {
        let source = Source::new(config)?;
        let client = Box::pin(migrate::migrate(&source)).await?;
        import_lock::refuse_half(&client).await?;
        Self::over(&source, config)
    }

    /// Connects for an import, which nobody else may disturb: the tables have nothing in them but what another import left
    /// that was cut off. Nothing is changed before [`Importing::mark`].
    ///
    /// # Errors
    /// As [`Self::open`]; [`OpenError::Filled`], [`OpenError::Importing`].
    pub async fn open_for_import(config: &config::Postgres) -> Result<(Self, Importing), OpenError> {
        let source = Source::new(config)?;
        let importing = Importing::begin(&source).await?;
        Ok((Self::over(&source, config)?, importing))
    }

    fn over(source: &Source, config: &config::Postgres) -> Result<Self, OpenError> {
        let core = Core {
            owners: source.pool(config, config.pool_max.div_ceil(2))?,
            readers: source.pool(config, (config.pool_max / 2).max(1))?,
            wait: config.statement() + NETWORK,
            weeks: Weeks::default(),
            saves: Gather::default(),
            conversations: Gather::default(),
            summaries: Gather::default(),
            wishes: Gather::default(),
            loads: Gather::default(),
            portions: Gather::default(),
            dropping: tokio::sync::Mutex::default(),
        };
        Ok(Self { core: Arc::new(core) })
    }
}

impl Core {
    /// For what an owner waits for.
    async fn owners(&self) -> Result<Session, Trouble> {
        Session::take(&self.owners, self.wait).await
    }

    /// For what clients ask.
    async fn readers(&self) -> Result<Session, Trouble> {
        Session::take(&self.readers, self.wait).await
    }

    /// The port's error.
    fn error(trouble: Trouble) -> StoreError {
        match trouble {
            Trouble::Away(why) | Trouble::Again(why) | Trouble::Taken(why) | Trouble::NoTable(why) => {
                StoreError::Unavailable(why)
            }
            Trouble::NoConnection(why) => StoreError::NoConnection(why),
            Trouble::Damaged(why) => {
                tracing::error!(why, "Postgres gave a row that makes no sense: see docs/postgres.md");
                StoreError::Damaged(why)
            }
            Trouble::Store(error) => error,
        }
    }

    /// Runs a transaction until nobody else is in its way.
    async fn run<T, F>(&self, once: impl Fn() -> F + Send) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Trouble>> + Send,
    {
        let mut pause = BACK_OFF;
        for _ in 1..TRIES {
            match once().await {
                Ok(done) => return Ok(done),
                Err(Trouble::Again(_)) => {}
                Err(trouble) => return Err(Self::error(trouble)),
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        once().await.map_err(Self::error)
    }

    /// One try; all of them or none. Of several, which one is in the way is not found out.
    async fn archive_once(&self, archives: &[Archive<'_>]) -> Result<(), Trouble> {
        let mut session = self.owners().await?;
        let done = owner::archive(&mut session, &self.weeks, archives).await;
        if done.as_ref().is_err_and(Trouble::was_answered) {
            session.roll_back().await;
        }
        match (done, archives) {
            (Err(Trouble::Taken(why)), [one]) => {
                let found = archive::find_taken(&mut session, one.delta).await?;
                Err(found.map_or(Trouble::Away(why), Trouble::Store))
            }
            (Err(Trouble::NoTable(why)), _) => {
                self.weeks.forget();
                Err(Trouble::Again(why))
            }
            (other, _) => other,
        }
    }

    /// Best effort: what does not succeed now does the next time.
    async fn drop_forgotten(&self) -> Result<(), Trouble> {
        let Ok(_alone) = self.dropping.try_lock() else { return Ok(()) };
        key_partitions::drop_forgotten(&mut self.owners().await?).await
    }
}

/// Partitions are numbered as Kafka does: below 2^31.
fn number(partition: u32) -> Result<i32, StoreError> {
    let none = |_| StoreError::Unavailable(format!("there is no partition {partition}"));
    i32::try_from(partition).map_err(none)
}

#[async_trait]
impl Store for PostgresStore {
    async fn take_over(&self, partition: u32, fence: Fence, topic: TopicId) -> Result<TakenOver, StoreError> {
        let (core, partition) = (&*self.core, number(partition)?);
        core.run(
            move || async move { owner::take_over(&mut core.owners().await?, partition, fence, topic).await },
        )
        .await
    }

    async fn archive(&self, partition: u32, fence: Fence, delta: &Delta) -> Result<(), StoreError> {
        let (core, partition) = (&*self.core, number(partition)?);
        match archive::weight(delta) {
            Some(weight) => {
                let delta = delta.clone();
                send(&self.core, Portion { partition, fence, delta, weight }).await?;
            }
            None => {
                let one = &[Archive { partition, fence, delta }];
                core.run(move || core.archive_once(one)).await?;
            }
        }
        if core.weeks.may_drop(partition, delta.rules.keys_from) {
            let core = Arc::clone(&self.core);
            tokio::spawn(async move { core.drop_forgotten().await });
        }
        Ok(())
    }

    async fn load(
        &self,
        partition: u32,
        fence: Fence,
        needs: &[Need],
    ) -> Result<Snapshot<Loaded>, StoreError> {
        let load = Load { partition: number(partition)?, fence, needs: needs.to_vec() };
        send(&self.core, load).await?
    }

    async fn scan(&self, partition: u32, fence: Fence, scan: &Scan) -> Result<Snapshot<Loaded>, StoreError> {
        let (core, partition) = (&*self.core, number(partition)?);
        core.run(move || async move { owner::scan(&mut core.owners().await?, partition, fence, scan).await })
            .await
    }

    async fn memberships(
        &self,
        user: &UserId,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<Vec<Membership>, StoreError> {
        let page = Conversations { user: user.clone(), after: after.cloned(), limit };
        send(&self.core, page).await
    }

    async fn members(
        &self,
        conversation: &ConversationId,
        after: Option<&UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>, StoreError> {
        let core = &*self.core;
        core.run(move || async move {
            queries::members(&mut core.owners().await?, conversation, after, limit).await
        })
        .await
    }

    async fn summary(
        &self,
        conversation: &ConversationId,
        of: Option<&UserId>,
    ) -> Result<Option<Summary>, StoreError> {
        send(&self.core, Summaries { conversation: conversation.clone(), of: of.cloned() }).await
    }

    async fn save_marks(&self, changes: &[(UserId, ConversationId, Personal)]) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        send(&self.core, Save(changes.to_vec())).await
    }

    async fn wishes(&self, user: &UserId, now: UserSettings) -> Result<UserSettings, StoreError> {
        let before = send(&self.core, Wishes(user.clone())).await?;
        // Most logins wish nothing new: they only read.
        if now.over(before) == before {
            return Ok(before);
        }
        let core = &*self.core;
        core.run(move || async move { marks::wish(&mut core.readers().await?, user, now).await }).await
    }

    async fn page(&self, conversation: &ConversationId, query: PageQuery) -> Result<Page, StoreError> {
        let core = &*self.core;
        core.run(move || async move { queries::page(&mut core.readers().await?, conversation, query).await })
            .await
    }
}

impl From<StoreError> for FloorError {
    fn from(error: StoreError) -> Self {
        Self::Away(error.to_string())
    }
}

#[async_trait]
impl Floors for PostgresStore {
    async fn reserve(&self, key: &str, size: NonZeroU64) -> Result<Block, FloorError> {
        let core = &*self.core;
        let once = move || async move { number_blocks::reserve(&mut core.owners().await?, key, size).await };
        Ok(core.run(once).await?)
    }

    async fn epoch(&self) -> Result<u64, FloorError> {
        let core = &*self.core;
        Ok(core.run(move || async move { number_blocks::epoch(&mut core.owners().await?).await }).await?)
    }

    async fn raise(&self) -> Result<u64, FloorError> {
        let core = &*self.core;
        Ok(core.run(move || async move { number_blocks::raise(&mut core.owners().await?).await }).await?)
    }
}
