//! Keys and audit log of the admin port, opened before anything else starts.

use std::sync::Arc;

use anyhow::Context as _;

use crate::{
    api::access::AdminGate, audit::AuditFile, broker::Broker, cluster::Cluster, config::Config,
    evidence::EvidenceFile, guard::apisix::ApisixBans, keys::KeyRing, limits::RuleGuard, metrics::Metrics,
    supervised,
};

/// Opened files of the admin port.
pub(super) struct AdminFiles {
    ring: Option<Arc<KeyRing>>,
    audit: Arc<AuditFile>,
    metrics: Metrics,
}

impl AdminFiles {
    /// Opens the files.
    ///
    /// # Errors
    /// One of them can't be used; the error names the setting, the file and the cure.
    pub(super) fn open(config: &Config, metrics: &Metrics) -> anyhow::Result<Self> {
        let admin = &config.admin;
        let ring = (!admin.keys_file.as_os_str().is_empty()).then(|| {
            let file = &admin.keys_file;
            KeyRing::open(file, metrics.clone())
                .with_context(|| format!("admin.keys_file: {} can't be used", file.display()))
        });
        let file = config.audit_file();
        let audit = AuditFile::open(&file, admin.audit_bytes_max, metrics.clone())
            .with_context(|| format!("admin.audit_file: {} can't be used", file.display()))?;
        Ok(Self { ring: ring.transpose()?.map(Arc::new), audit: Arc::new(audit), metrics: metrics.clone() })
    }

    /// Opens the outputs of evidence of abuse and of what is decided by it, and starts to pass bans on to the gateway.
    ///
    /// # Errors
    /// The gateway can't be used; the error names the setting.
    pub(super) fn record(&self, config: &Config, cluster: &Cluster) -> anyhow::Result<()> {
        let evidence = &config.evidence;
        cluster
            .evidence
            .set_files(EvidenceFile::new(&evidence.file, evidence.file_days), Arc::clone(&self.audit));
        if evidence.apisix_url.is_empty() {
            return Ok(());
        }
        let (url, key, ca) = (&evidence.apisix_url, &evidence.apisix_key_file, &evidence.apisix_ca_file);
        let gateway = ApisixBans::new(cluster, url, key, ca, self.metrics.clone());
        supervised::spawn("the bans at the gateway", gateway?.run());
        Ok(())
    }

    /// Builds the guard of the admin port, and starts to follow the keys in the present runtime.
    pub(super) fn gate(self, config: &Config, broker: &Broker, rules: Arc<RuleGuard>) -> Arc<AdminGate> {
        if let Some(ring) = &self.ring {
            supervised::spawn("the keys of the admin port", Arc::clone(ring).follow());
        }
        Arc::new(
            AdminGate::new(
                self.ring,
                self.audit,
                &broker.cluster,
                config.is_development(),
                rules,
                self.metrics,
            )
            .recording_reads(config.admin.audit_reads),
        )
    }
}
