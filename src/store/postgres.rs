//! `Store` and `Floors` on Postgres: the archive of a cluster, and its number blocks (ADR 10).
//!
//! An archive is one transaction that first moves the position under the fence; that row is the lock of the partition.
//! Each read is one snapshot, in one round trip. docs/postgres.md describes the tables.

mod archive;
mod batcher;
mod blocks;
mod codec;
mod connect;
mod conversation_lists;
mod error;
mod guard;
mod import_lock;
mod key_partitions;
mod marks;
mod message_times;
mod migrate;
mod number_blocks;
mod owner;
mod queries;
mod revocations;
mod row_loader;
mod scattered;
mod session;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use deadpool_postgres::Pool;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::{Delta, Loaded, Member, Need},
    settings::UserSettings,
};
use tokio::sync::Semaphore;

use self::{
    batcher::{Batcher, send},
    connect::Source,
    error::PostgresError,
    key_partitions::KeyPartitions,
    marks::{MarksUpdate, SettingsQuery, SettingsUpdate},
    owner::Archive,
    owner::SmallArchive,
    queries::{MembershipsQuery, SummaryQuery},
    row_loader::Load,
    scattered::NewestQuery,
    session::{ReadPermits, ReadsOf, Session},
};
pub use self::{connect::PostgresOpenError, import_lock::Importing};
use super::{
    ConversationLists as _, ConversationSeq, Fence, GroupMembers, Membership, MembershipsRequest, Page,
    PageQuery, Personal, ReadClass, Scan, Snapshot, Store, StoreError, StoredRow, Summary, Takeover,
};
use crate::{
    backoff::Backoff,
    breaker::{GuardedService, ServiceBreaker},
    bus::TopicId,
    config,
    log_limit::log_limited,
    supervised,
};

/// Attempts at a transaction that concurrent transactions prevent.
const ATTEMPTS_MAX: u32 = 6;

/// Delay after the first failed attempt; it doubles after each.
const BACK_OFF_MIN: Duration = Duration::from_millis(2);

/// Delay before the last attempt.
const BACK_OFF_MAX: Duration = Duration::from_millis(32);

/// Network time allowed for a round trip, in addition to the server's statement timeout.
const NETWORK_TIME_MAX: Duration = Duration::from_millis(500);

/// Time from which a read of a client counts as late: a server that needs as long serves no client in time.
const READ_LATE_AFTER: Duration = Duration::from_secs(2);

/// Connections for readers that reads of clients never use, so that logins don't wait for them.
const LOGIN_CONNECTIONS: usize = 2;

/// Reads of back ends take one of so many permits for reads of clients, and at least one.
const BACK_END_SHARE: usize = 4;

/// Store of profile `cluster`.
pub struct PostgresStore {
    core: Arc<Core>,
    /// Callers whose reads this handle makes.
    reads: ReadsOf,
}

struct Core {
    /// Connections for archives and loads of owners, separate from `readers`, so that 15,000 clients that reconnect at
    /// once do not delay an archive.
    owners: Pool,
    /// Connections for logins, marks and reads of clients.
    readers: Pool,
    /// Permits for reads of clients: fewer than `readers` has connections.
    client_permits: Arc<Semaphore>,
    /// Permits for reads of back ends, which need one of `client_permits` too.
    back_end_permits: Arc<Semaphore>,
    /// Breaker of reads of clients, so that a server that is away costs them one timeout and not one each.
    breaker: Arc<ServiceBreaker>,
    /// Timeout of one round trip.
    wait: Duration,
    key_partitions: KeyPartitions,
    mark_updates: Batcher<MarksUpdate>,
    memberships: Batcher<MembershipsQuery>,
    summaries: Batcher<SummaryQuery>,
    newest: Batcher<NewestQuery>,
    settings: Batcher<SettingsQuery>,
    settings_updates: Batcher<SettingsUpdate>,
    loads: Batcher<Load>,
    small_archives: Batcher<SmallArchive>,
    /// Whether archives write the feed.
    writes_feed: AtomicBool,
    /// Lock that admits one drop of expired weeks at a time.
    drop_lock: tokio::sync::Mutex<()>,
}

impl PostgresStore {
    /// Connects, and creates or migrates the tables; several nodes may do so at once.
    ///
    /// # Errors
    /// The configuration or the tables are invalid; [`PostgresOpenError::Unavailable`] may be retried.
    pub async fn open(config: &config::PostgresConfig) -> Result<Self, PostgresOpenError> {
        let source = Source::new(config)?;
        let client = Box::pin(migrate::migrate(&source)).await?;
        import_lock::refuse_unfinished_import(&client).await?;
        Self::over(&source, config)
    }

    /// Connects for an import, with exclusive use of the tables; nothing is changed before [`Importing::mark`].
    ///
    /// The tables must be empty, except for the remains of an interrupted import.
    ///
    /// # Errors
    /// See [`Self::open`]; also [`PostgresOpenError::Filled`] and [`PostgresOpenError::Importing`].
    pub async fn open_for_import(
        config: &config::PostgresConfig,
    ) -> Result<(Self, Importing), PostgresOpenError> {
        let source = Source::new(config)?;
        let importing = Importing::begin(&source).await?;
        // History is not an event.
        Ok((Self::over(&source, config)?.without_feed(), importing))
    }

    fn over(source: &Source, config: &config::PostgresConfig) -> Result<Self, PostgresOpenError> {
        let readers = (config.pool_max / 2).max(1);
        let client_permits = readers.saturating_sub(LOGIN_CONNECTIONS).max(1);
        let core = Core {
            owners: source.pool(config, config.pool_max.div_ceil(2))?,
            readers: source.pool(config, readers)?,
            client_permits: Arc::new(Semaphore::new(client_permits)),
            back_end_permits: Arc::new(Semaphore::new((client_permits / BACK_END_SHARE).max(1))),
            breaker: ServiceBreaker::new(
                GuardedService::Postgres,
                config.connect() + config.statement() + NETWORK_TIME_MAX,
            ),
            wait: config.statement() + NETWORK_TIME_MAX,
            key_partitions: KeyPartitions::default(),
            mark_updates: Batcher::default(),
            memberships: Batcher::default(),
            summaries: Batcher::default(),
            newest: Batcher::default(),
            settings: Batcher::default(),
            settings_updates: Batcher::default(),
            loads: Batcher::default(),
            small_archives: Batcher::default(),
            writes_feed: AtomicBool::new(true),
            drop_lock: tokio::sync::Mutex::default(),
        };
        Ok(Self { core: Arc::new(core), reads: ReadsOf::Clients })
    }
}

impl Core {
    /// Returns a connection for calls that an owner waits for.
    async fn owners(&self) -> Result<Session, PostgresError> {
        Session::take(&self.owners, self.wait).await
    }

    /// Returns a connection for logins and marks.
    async fn readers(&self) -> Result<Session, PostgresError> {
        Session::take(&self.readers, self.wait).await
    }

    /// Returns a connection for a read of a client or back end, which leaves [`LOGIN_CONNECTIONS`] to others. Reads of
    /// back ends leave most of the rest to clients, and their slowness does not open the breaker.
    async fn client_reads(&self, of: ReadsOf) -> Result<Session, PostgresError> {
        let (before, late_after) = match of {
            ReadsOf::Clients => (None, Some(READ_LATE_AFTER)),
            ReadsOf::BackEnds => (Some(&self.back_end_permits), None),
        };
        let permits =
            ReadPermits { breaker: &self.breaker, before, connections: &self.client_permits, late_after };
        Session::take_permitted(permits, &self.readers, self.wait).await
    }

    /// Converts an error to that of the port.
    fn error(error: PostgresError) -> StoreError {
        match error {
            PostgresError::Unavailable(why)
            | PostgresError::Retriable(why)
            | PostgresError::RowExists(why)
            | PostgresError::NoTable(why) => StoreError::Unavailable(why),
            PostgresError::NoConnection(why) => StoreError::NoConnection(why),
            PostgresError::Damaged(why) => {
                log_limited!(
                    error,
                    why,
                    "invalid row in Postgres; its reader gets no data (see docs/postgres.md)"
                );
                StoreError::Damaged(why)
            }
            PostgresError::Store(error) => error,
        }
    }

    /// Runs a transaction, and repeats it while concurrent transactions prevent it, up to [`ATTEMPTS_MAX`] times.
    async fn run<T, F>(&self, once: impl Fn() -> F + Send) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, PostgresError>> + Send,
    {
        let mut backoff = Backoff::new(BACK_OFF_MIN, BACK_OFF_MAX);
        for _ in 1..ATTEMPTS_MAX {
            match once().await {
                Ok(done) => return Ok(done),
                Err(PostgresError::Retriable(_)) => {}
                Err(error) => return Err(Self::error(error)),
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
        once().await.map_err(Self::error)
    }

    /// Attempts to write all archives or none. If there are several, the error does not identify the invalid one.
    async fn archive_once(&self, archives: &[Archive<'_>]) -> Result<(), PostgresError> {
        let mut session = self.owners().await?;
        let writes_feed = self.writes_feed.load(Ordering::Relaxed);
        let done = owner::archive(&mut session, &self.key_partitions, archives, writes_feed).await;
        if done.as_ref().is_err_and(PostgresError::is_refusal) {
            session.roll_back().await;
        }
        match (done, archives) {
            (Err(PostgresError::RowExists(why)), [one]) => {
                let found = archive::find_existing_row(&mut session, one.delta).await?;
                Err(found.map_or(PostgresError::Unavailable(why), PostgresError::Store))
            }
            (Err(PostgresError::NoTable(why)), _) => {
                self.key_partitions.clear();
                Err(PostgresError::Retriable(why))
            }
            (other, _) => other,
        }
    }

    /// Drops expired weeks of keys, best effort: a failed drop is repeated by the next one.
    async fn drop_expired(&self) -> Result<(), PostgresError> {
        let Ok(_alone) = self.drop_lock.try_lock() else { return Ok(()) };
        key_partitions::drop_expired(&mut self.owners().await?).await
    }
}

/// Returns the column value of a partition number, which is below 2^31 as in Kafka.
fn number(partition: u32) -> Result<i32, StoreError> {
    let invalid = |_| StoreError::Unavailable(format!("there is no partition {partition}"));
    i32::try_from(partition).map_err(invalid)
}

#[async_trait]
impl Store for PostgresStore {
    fn for_back_ends(&self) -> Option<Arc<dyn Store>> {
        Some(Arc::new(Self { core: Arc::clone(&self.core), reads: ReadsOf::BackEnds }))
    }

    async fn now_ms(&self) -> Result<Option<u64>, StoreError> {
        let core = &*self.core;
        core.run(move || async move { owner::now_ms(&mut core.owners().await?).await.map(Some) }).await
    }

    async fn take_over(&self, partition: u32, fence: Fence, topic: TopicId) -> Result<Takeover, StoreError> {
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
                send(&self.core, SmallArchive { partition, fence, delta, weight }).await?;
            }
            None => {
                let one = &[Archive { partition, fence, delta }];
                core.run(move || core.archive_once(one)).await?;
            }
        }
        if core.key_partitions.may_drop(partition, delta.rules.keys_from) {
            let core = Arc::clone(&self.core);
            supervised::spawn("the expiry of keys", async move { core.drop_expired().await });
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
        let page = MembershipsRequest { user: user.clone(), after: after.cloned(), limit };
        match self.reads {
            ReadsOf::Clients => send(&self.core, MembershipsQuery(page)).await,
            // They share no statement with syncs of clients, which would wait for it.
            ReadsOf::BackEnds => Ok(self.memberships_of(&[page]).await?.pop().unwrap_or_default()),
        }
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
        let query = SummaryQuery { conversation: conversation.clone(), of: of.cloned() };
        match self.reads {
            ReadsOf::Clients => send(&self.core, query).await,
            ReadsOf::BackEnds => Ok(self.summaries_of(&[&query]).await?.pop().flatten()),
        }
    }

    async fn archived_without(
        &self,
        partition: u32,
        conversation: &ConversationId,
    ) -> Result<Option<u64>, StoreError> {
        let (core, partition) = (&*self.core, number(partition)?);
        core.run(move || async move {
            queries::archived_without(&mut core.client_reads(self.reads).await?, partition, conversation)
                .await
        })
        .await
    }

    async fn save_marks(&self, changes: &[(UserId, ConversationId, Personal)]) -> Result<(), StoreError> {
        marks::save_marks(&self.core, changes).await
    }

    async fn merge_settings(&self, user: &UserId, now: UserSettings) -> Result<UserSettings, StoreError> {
        marks::merge_settings(&self.core, user, now).await
    }

    async fn page(&self, conversation: &ConversationId, query: PageQuery) -> Result<Page, StoreError> {
        let core = &*self.core;
        core.run(move || async move {
            queries::page(&mut core.client_reads(self.reads).await?, conversation, query).await
        })
        .await
    }

    async fn rows_at(
        &self,
        conversation: &ConversationId,
        seqs: &[u64],
        max_bytes: usize,
    ) -> Result<Page, StoreError> {
        let core = &*self.core;
        core.run(move || async move {
            scattered::rows_at(&mut core.client_reads(self.reads).await?, conversation, seqs, max_bytes).await
        })
        .await
    }

    async fn newest(
        &self,
        ends: &[ConversationSeq],
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<Vec<StoredRow>>, StoreError> {
        if ends.is_empty() {
            return Ok(Vec::new());
        }
        let query = NewestQuery { ends: ends.to_vec(), limit, max_bytes };
        let (core, queries) = match self.reads {
            ReadsOf::Clients => return send(&self.core, query).await,
            ReadsOf::BackEnds => (&*self.core, &[&query]),
        };
        let once = move || async move {
            scattered::newest(&mut core.client_reads(self.reads).await?, queries).await
        };
        Ok(core.run(once).await?.pop().unwrap_or_default())
    }

    async fn times(&self, rows: &[ConversationSeq]) -> Result<Vec<Option<u64>>, StoreError> {
        let core = &*self.core;
        core.run(
            move || async move { scattered::times(&mut core.client_reads(self.reads).await?, rows).await },
        )
        .await
    }

    async fn summaries(
        &self,
        conversations: &[ConversationId],
        of: &UserId,
    ) -> Result<Vec<Option<Summary>>, StoreError> {
        let query = |id: &ConversationId| SummaryQuery { conversation: id.clone(), of: Some(of.clone()) };
        let queries: Vec<SummaryQuery> = conversations.iter().map(query).collect();
        self.summaries_of(&queries.iter().collect::<Vec<_>>()).await
    }

    async fn group_members(
        &self,
        groups: &[ConversationId],
        listed_max: usize,
        class: ReadClass,
    ) -> Result<Vec<Option<GroupMembers>>, StoreError> {
        let core = &*self.core;
        core.run(move || async move {
            let mut session = match class {
                ReadClass::Owner => core.owners().await?,
                ReadClass::Client => core.client_reads(self.reads).await?,
            };
            scattered::group_members(&mut session, groups, listed_max).await
        })
        .await
    }
}
