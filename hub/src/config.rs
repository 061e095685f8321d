//! The command line of `runnel-hub`; every flag is also read from the environment.
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use runnel_hub_core::rollout::AllowedUrls;
use runnel_proto::model::{is_label, is_subdomain};
use runnel_transport::identity::is_address;
use runnel_transport::ops::LogFormat;

/// Streams ConfigMaps and Secrets from this cluster to member clusters.
#[derive(Parser)]
#[command(name = "runnel-hub", version, about)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommand.
#[derive(Subcommand)]
pub enum Command {
    /// Run the hub.
    // If an option is repeated, the last value applies, so that a chart's `extraArgs` replace
    // earlier arguments.
    #[command(args_override_self = true)]
    Run(Box<Run>),
    /// Let clusters join.
    #[command(subcommand)]
    Token(Token),
    /// Print the custom resource definitions as YAML.
    Crds,
}

/// The API server, and the namespace of Runnel in it.
#[derive(Args, Clone)]
pub struct ApiAccess {
    /// Kubeconfig file of the hub cluster; without it, the ServiceAccount of the pod is used.
    #[arg(long, env = "RUNNEL_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The namespace of Runnel's own Secrets on the hub.
    #[arg(long, env = "RUNNEL_NAMESPACE", default_value = "runnel-system")]
    pub namespace: String,
    /// The format of log lines.
    #[arg(long, env = "RUNNEL_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// Run the hub.
#[derive(Args)]
pub struct Run {
    /// The API server.
    #[command(flatten)]
    pub access: ApiAccess,
    /// The address on which the hub accepts agents.
    #[arg(long, env = "RUNNEL_LISTEN", default_value = "0.0.0.0:8443", value_parser = socket, value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// An address at which agents in other clusters reach the hub; may be given several times. It goes into join strings.
    #[arg(long, env = "RUNNEL_ADVERTISE", value_delimiter = ',', value_parser = address, value_name = "HOST:PORT")]
    pub advertise: Vec<String>,
    /// The address of the probes and metrics.
    #[arg(long, env = "RUNNEL_OPS_LISTEN", default_value = "0.0.0.0:8081", value_parser = socket, value_name = "ADDRESS:PORT")]
    pub ops_listen: SocketAddr,
    /// Watch sources in these namespaces only; they must exist and the hub must have the right to read there. Without
    /// it, sources are watched in the whole cluster.
    #[arg(
        long,
        env = "RUNNEL_SOURCE_NAMESPACES",
        value_delimiter = ',',
        value_parser = namespace,
        value_name = "NAMESPACE"
    )]
    pub source_namespaces: Vec<String>,
    /// Create the DistributionGrant `everything` once, at the first start, if no grant exists. Without this flag,
    /// DistributionRules send nothing until an administrator creates a grant.
    #[arg(long, env = "RUNNEL_GRANT_EVERYTHING")]
    pub grant_everything: bool,
    /// How long a deleted source still counts as existing, so that a delete and re-create is an edit; such as 5s.
    #[arg(long, env = "RUNNEL_SOURCE_GONE_GRACE", default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub source_gone_grace: Duration,
    /// The most copies of a rule that one indirect change removes without approval. No removalLimit of a rule exceeds it.
    /// Where --removal-limit-percent is set, too, the larger of the two counts.
    #[arg(long, env = "RUNNEL_REMOVAL_LIMIT_COUNT", value_name = "COPIES", value_parser = clap::value_parser!(i64).range(0..))]
    pub removal_limit_count: Option<i64>,
    /// The largest part of a rule's copies that one indirect change removes without approval, in percent. Where
    /// --removal-limit-count is set, too, the larger of the two counts.
    #[arg(long, env = "RUNNEL_REMOVAL_LIMIT_PERCENT", value_name = "PERCENT", value_parser = clap::value_parser!(i64).range(0..=100))]
    pub removal_limit_percent: Option<i64>,
    /// The most bytes that are rendered for one rule whose copies differ by cluster, compressed as in memory; such as
    /// 128Mi. A rule that needs more is not sent.
    #[arg(long, env = "RUNNEL_RENDER_BUDGET", default_value = "128Mi", value_parser = bytes, value_name = "BYTES")]
    pub render_budget: Bytes,
    /// How many MiB of completed rollouts the hub stores for rollbacks (spec.rollout.onFailure: Revert), in as many Secrets
    /// runnel-hub-rollback-0, -1, ... in --namespace. The rollout of a rule that does not fit stops instead of a rollback.
    #[arg(long, env = "RUNNEL_ROLLBACK_STORAGE", default_value_t = 16, value_name = "MIB", value_parser = clap::value_parser!(u16).range(0..=256))]
    pub rollback_storage: u16,
    /// A URL prefix that analyses of rollouts (spec.rollout.analysis) may request: scheme, host, port and path, such as
    /// `http://prometheus.monitoring:9090`; may be given several times. Without it every analysis is refused.
    #[arg(
        long = "analysis-allow",
        env = "RUNNEL_ANALYSIS_ALLOW",
        value_delimiter = ',',
        value_parser = url_prefix,
        value_name = "URL"
    )]
    pub analysis_allow: Vec<String>,
    /// A file in PEM with CAs that analyses trust, besides those of the system.
    #[arg(long, env = "RUNNEL_ANALYSIS_CA_FILE", value_name = "FILE")]
    pub analysis_ca_file: Option<PathBuf>,
    /// The validity of a member's certificate; its agent renews it at half of that.
    #[arg(long, env = "RUNNEL_CERTIFICATE_LIFE", default_value = "24h", value_parser = life, value_name = "DURATION")]
    pub certificate_life: Duration,
    /// How long an expired certificate of a member can still be renewed. It allows nothing else.
    #[arg(long, env = "RUNNEL_EXPIRED_RENEWAL_LIMIT", default_value = "720h", value_parser = limit, value_name = "DURATION")]
    pub expired_renewal_limit: Duration,
    /// How long a CA that the hub creates for itself is valid; the hub replaces it at half of that, without a break.
    #[arg(long, env = "RUNNEL_CA_LIFE", default_value = "87600h", value_parser = ca_life, value_name = "DURATION")]
    pub ca_life: Duration,
    /// The name of this replica in the Lease. No other replica may have it at the same time.
    #[arg(long, env = "RUNNEL_POD_NAME", value_parser = name, value_name = "NAME")]
    pub pod_name: Option<String>,
    /// The address on which this replica accepts connections that other replicas forward. Without it there is one replica.
    #[arg(long, env = "RUNNEL_REPLICA_LISTEN", requires = "replica_address", value_parser = socket, value_name = "ADDRESS:PORT")]
    pub replica_listen: Option<SocketAddr>,
    /// The address at which other replicas reach --replica-listen.
    #[arg(long, env = "RUNNEL_REPLICA_ADDRESS", requires = "replica_listen", value_parser = address, value_name = "HOST:PORT")]
    pub replica_address: Option<String>,
    /// Where the API server of the hub's cluster forwards requests for views (view.runnel.dev); without it there are none.
    #[arg(long, env = "RUNNEL_VIEW_LISTEN", value_parser = socket, value_name = "ADDRESS:PORT")]
    pub view_listen: Option<SocketAddr>,
    /// The host name under which the API server reaches --view-listen, for the certificate; may be given several times.
    /// Default: runnel-hub-view.NAMESPACE.svc.
    #[arg(
        long = "view-name",
        env = "RUNNEL_VIEW_NAMES",
        value_delimiter = ',',
        value_parser = name,
        value_name = "HOST"
    )]
    pub view_names: Vec<String>,
    /// How long after the last renewal another replica takes the Lease: 1s to 120s.
    #[arg(long, env = "RUNNEL_LEASE_DURATION", default_value = "15s", value_parser = duration, value_name = "DURATION")]
    pub lease_duration: Duration,
    /// How long the leader leads without a successful renewal; shorter than the lease duration.
    #[arg(long, env = "RUNNEL_RENEW_DEADLINE", default_value = "10s", value_parser = duration, value_name = "DURATION")]
    pub renew_deadline: Duration,
    /// The interval of renewals of the Lease.
    #[arg(long, env = "RUNNEL_RETRY_PERIOD", default_value = "2s", value_parser = duration, value_name = "DURATION")]
    pub retry_period: Duration,
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

/// Let clusters join.
#[derive(Subcommand)]
pub enum Token {
    /// Create a MemberCluster, or use the existing one, and print the join string for its agent.
    Create(Create),
}

/// Create a MemberCluster, or use the existing one, and print the join string for its agent.
#[derive(Args)]
pub struct Create {
    /// The API server.
    #[command(flatten)]
    pub access: ApiAccess,
    /// Name of the cluster.
    pub cluster: String,
    /// A label of the MemberCluster, by which rules select; may be given several times.
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<String>,
    /// How long the join string is valid. It is valid for one agent.
    #[arg(
        long,
        env = "RUNNEL_TTL",
        default_value = "1h",
        value_name = "DURATION"
    )]
    pub ttl: String,
    /// An address of the hub, instead of those that the running hub advertises; may be given several times.
    #[arg(
        long,
        env = "RUNNEL_ADVERTISE",
        value_delimiter = ',',
        value_name = "HOST:PORT"
    )]
    pub advertise: Vec<String>,
    /// Write the MemberCluster, with the hash and expiry of the token, to this file for Git, and nothing to the hub's cluster.
    /// The join string is printed as usual.
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,
}

/// A value on the command line that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No socket address.
    #[error("write address:port, such as 0.0.0.0:8443 or [::]:8443")]
    Socket,
    /// No address of a host.
    #[error("write host:port, such as hub.example.com:8443")]
    Address,
    /// No name of a namespace.
    #[error("write the names of namespaces, such as team-a,team-b; globs are not possible here")]
    Namespace,
    /// No name of a pod.
    #[error("write the name of the pod, such as runnel-hub-0")]
    PodName,
    /// No prefix of URLs.
    #[error(
        "write a URL without user, query and dot segments, such as http://prometheus.monitoring:9090"
    )]
    UrlPrefix,
    /// No number of bytes, or too small.
    #[error("write at least 1Mi, such as 128Mi or 1Gi")]
    Bytes,
    /// No duration.
    #[error("write a duration such as 500ms, 5s, 1h30m or 30d")]
    Duration,
    /// A grace period or time of the Lease that is too long.
    #[error("at most 24h")]
    GracePeriod,
    /// A validity of certificates that is too short or too long.
    #[error("between 4s and 720h")]
    CertificateLife,
    /// A validity of CAs that is too short or too long.
    #[error("between 2160h (ninety days) and 876000h")]
    CaLife,
    /// A time for the renewal of expired certificates that is too long.
    #[error("at most 8760h")]
    RenewalLimit,
}

/// The longest validity of a member's certificate: thirty days.
const MAX_CERTIFICATE_LIFETIME: Duration = Duration::from_secs(720 * 60 * 60);
/// The longest time for which an expired certificate can be renewed: one year.
const LONGEST_LIMIT: Duration = Duration::from_secs(8760 * 60 * 60);
/// The shortest validity of a CA: ninety days. Members get at least thirty days to follow a change,
/// and certificates that the CA signs may be valid for thirty.
const MIN_CA_LIFETIME: Duration = Duration::from_secs(2160 * 60 * 60);
const MAX_CA_LIFETIME: Duration = Duration::from_secs(876_000 * 60 * 60);
/// The longest grace period of a deleted source, far above a usual delete and re-create.
const LONGEST_GRACE: Duration = Duration::from_secs(24 * 60 * 60);

/// Adds brackets to an IPv6 address without them, because Kubernetes reports pod IPs without
/// brackets.
fn bracketed(text: &str) -> String {
    match text.rsplit_once(':') {
        Some((host, port)) if host.parse::<Ipv6Addr>().is_ok() => format!("[{host}]:{port}"),
        _ => text.to_owned(),
    }
}

fn socket(text: &str) -> Result<SocketAddr, ConfigError> {
    bracketed(text).parse().map_err(|_| ConfigError::Socket)
}

fn address(text: &str) -> Result<String, ConfigError> {
    let text = bracketed(text);
    if is_address(&text) {
        Ok(text)
    } else {
        Err(ConfigError::Address)
    }
}

fn namespace(text: &str) -> Result<String, ConfigError> {
    if is_label(text) {
        Ok(text.to_owned())
    } else {
        Err(ConfigError::Namespace)
    }
}

/// Checks a prefix of URLs.
fn url_prefix(text: &str) -> Result<String, ConfigError> {
    if AllowedUrls::is_prefix(text) {
        Ok(text.to_owned())
    } else {
        Err(ConfigError::UrlPrefix)
    }
}

/// Checks a pod name. The Lease contains it before a random part.
fn name(text: &str) -> Result<String, ConfigError> {
    if is_subdomain(text) {
        Ok(text.to_owned())
    } else {
        Err(ConfigError::PodName)
    }
}

/// Parses a number of bytes, with the units of Kubernetes for memory.
fn bytes(text: &str) -> Result<Bytes, ConfigError> {
    let units = [("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30)];
    let unit = units
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (digits, factor) = unit.unwrap_or((text, 1));
    let number = digits
        .parse::<u64>()
        .ok()
        .filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
    match number.and_then(|number| number.checked_mul(factor)) {
        Some(bytes) if bytes >= 1 << 20 => Ok(Bytes(bytes)),
        _ => Err(ConfigError::Bytes),
    }
}

/// The units of a duration, in milliseconds. A day is 24 hours.
const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

/// Parses a duration as the charts write it: numbers with their units, such as 1h30m.
///
/// # Errors
/// [`ConfigError::Duration`].
pub fn any_duration(text: &str) -> Result<Duration, ConfigError> {
    let part = |rest: &str| {
        let number = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, rest) = rest.split_at(number);
        let (unit, rest) = rest.split_at(
            rest.find(|c: char| c.is_ascii_digit())
                .unwrap_or(rest.len()),
        );
        let (_, milliseconds) = UNITS.iter().find(|(name, _)| *name == unit)?;
        Some((
            Duration::from_millis(number.parse::<u64>().ok()?.checked_mul(*milliseconds)?),
            rest.len(),
        ))
    };
    let parsed = || {
        let (mut sum, mut rest) = (Duration::ZERO, text);
        while !rest.is_empty() {
            let (more, left) = part(rest)?;
            (sum, rest) = (sum.checked_add(more)?, &rest[rest.len() - left..]);
        }
        Some(sum).filter(|_| !text.is_empty())
    };
    parsed().ok_or(ConfigError::Duration)
}

fn duration(text: &str) -> Result<Duration, ConfigError> {
    match any_duration(text)? {
        parsed if parsed <= LONGEST_GRACE => Ok(parsed),
        _ => Err(ConfigError::GracePeriod),
    }
}

/// Parses the validity of a certificate: long enough for a renewal, and short enough to limit the
/// use of a stolen one.
fn life(text: &str) -> Result<Duration, ConfigError> {
    match any_duration(text)? {
        parsed if (Duration::from_secs(4)..=MAX_CERTIFICATE_LIFETIME).contains(&parsed) => {
            Ok(parsed)
        }
        _ => Err(ConfigError::CertificateLife),
    }
}

/// Parses the validity of a CA, which must be far longer than that of the certificates it signs.
fn ca_life(text: &str) -> Result<Duration, ConfigError> {
    match any_duration(text)? {
        parsed if (MIN_CA_LIFETIME..=MAX_CA_LIFETIME).contains(&parsed) => Ok(parsed),
        _ => Err(ConfigError::CaLife),
    }
}

fn limit(text: &str) -> Result<Duration, ConfigError> {
    match any_duration(text)? {
        parsed if parsed <= LONGEST_LIMIT => Ok(parsed),
        _ => Err(ConfigError::RenewalLimit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_duration_error_names_the_format() {
        assert_eq!(duration("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(
            (bytes("128Mi"), bytes("1048576")),
            (Ok(Bytes(128 << 20)), Ok(Bytes(1 << 20)))
        );
        assert!(
            [
                "",
                "Mi",
                "-1Mi",
                "1KB",
                "1023Ki",
                "+9Mi",
                "99999999999999Gi"
            ]
            .iter()
            .all(|wrong| bytes(wrong).is_err())
        );
        assert_eq!(namespace("team-a"), Ok("team-a".to_owned()));
        assert!(
            ["team-*", "", "-a", "A"]
                .iter()
                .all(|wrong| namespace(wrong).is_err())
        );
        assert_eq!(address("fd00::5:8444"), Ok("[fd00::5]:8444".to_owned()));
        assert_eq!(
            address("hub.example.com:8443"),
            Ok("hub.example.com:8443".to_owned())
        );
        assert_eq!(
            socket("fd00::5:8443"),
            Ok(SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, 5], 8443)))
        );
        assert_eq!(socket("[::]:8443"), socket(":::8443"));
        assert!(
            socket("127.0.0.1:1").is_ok()
                && socket("127.0.0.1").is_err()
                && socket("here:1").is_err()
        );
        assert!(
            ["-5s", "25h", "soon", "", "5", "s", "5 s", "1.5h", "5S"]
                .iter()
                .all(|wrong| duration(wrong).is_err())
        );
        assert_eq!(duration("1m30s500ms"), Ok(Duration::from_millis(90_500)));
        assert_eq!(
            (limit("30d"), life("1d")),
            (
                Ok(Duration::from_secs(2_592_000)),
                Ok(Duration::from_secs(86_400))
            )
        );
        assert!(limit("99999999999999999999d").is_err() && limit("999999999999999999d").is_err());
    }
}
