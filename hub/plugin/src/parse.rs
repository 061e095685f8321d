//! Durations and names on the command line.
use std::time::Duration;

use runnel_proto::model::is_subdomain;

use runnel_api::SelectorError;

/// A value of the command line that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    /// A duration.
    #[error("{flag} `{given}` is not a duration: write for example 90s or 5m")]
    Duration {
        /// The flag, such as `--timeout`.
        flag: String,
        /// Its value.
        given: String,
    },
    /// The name of a rule.
    #[error("`{0}` names no rule: write NAME, NAMESPACE/NAME or cdrule/NAME")]
    Rule(String),
    /// The name of a copy.
    #[error(
        "`{0}` names no copy: write CLUSTER/NAMESPACE/KIND/NAME, such as eu-1/default/secret/login, or CLUSTER/KIND/NAME for a kind without namespaces"
    )]
    Copy(String),
    /// A kind of objects.
    #[error("`{0}` is no kind: write for example secret, or networkpolicies.networking.k8s.io")]
    Kind(String),
    /// A label of which `--label` makes no use.
    #[error("--label `{0}` is no label: write KEY=VALUE, or KEY for any value")]
    Label(String),
    /// A label selector that cannot be read.
    #[error("--label `{given}` {cause}")]
    Selector {
        /// The selector.
        given: String,
        /// What is wrong with it.
        cause: SelectorError,
    },
    /// A target namespace.
    #[error("--to `{0}` is no name of a namespace and no glob, such as team-*")]
    Namespace(String),
    /// A rule of a file without metadata.
    #[error("{0}: a DistributionRule without metadata")]
    Metadata(String),
}

/// Parses a duration such as `5m`.
///
/// # Errors
/// [`ArgumentError::Duration`].
pub fn duration(flag: &str, given: &str) -> Result<Duration, ArgumentError> {
    let wrong = || ArgumentError::Duration {
        flag: flag.to_owned(),
        given: given.to_owned(),
    };
    let parsed: jiff::SignedDuration = given.trim().parse().map_err(|_| wrong())?;
    Duration::try_from(parsed).map_err(|_| wrong())
}

/// Formats a duration in words.
pub fn duration_text(duration: Duration) -> String {
    if duration < Duration::from_secs(10) {
        return format!("{:.1} s", duration.as_secs_f64());
    }
    runnel_hub_core::now::span(i64::try_from(duration.as_secs()).unwrap_or(i64::MAX))
}

/// A rule on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleRef {
    /// A `DistributionRule`.
    Namespaced {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A `ClusterDistributionRule`.
    Cluster(String),
}

/// Understands `NAME`, `NAMESPACE/NAME`, `drule/NAME` and `cdrule/NAME`.
///
/// # Errors
/// [`ArgumentError::Rule`].
pub fn rule(given: &str, namespace: &str) -> Result<RuleRef, ArgumentError> {
    let wrong = || ArgumentError::Rule(given.to_owned());
    let (before, name) = given.split_once('/').unwrap_or(("drule", given));
    if !is_subdomain(name) || !is_subdomain(namespace) {
        return Err(wrong());
    }
    match before {
        "drule" | "distributionrule" | "distributionrules" => Ok(RuleRef::Namespaced {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }),
        "cdrule" | "clusterdistributionrule" | "clusterdistributionrules" => {
            Ok(RuleRef::Cluster(name.to_owned()))
        }
        other if is_subdomain(other) => Ok(RuleRef::Namespaced {
            namespace: other.to_owned(),
            name: name.to_owned(),
        }),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_rules_are_understood_or_refused_by_name() {
        assert_eq!(duration("--timeout", "90s"), Ok(Duration::from_secs(90)));
        assert!(
            duration("--timeout", "soon")
                .unwrap_err()
                .to_string()
                .contains("--timeout `soon`")
        );
        assert!(duration("--timeout", "-1s").is_err());
        assert_eq!(duration_text(Duration::from_millis(1240)), "1.2 s");
        let named = |namespace: &str, name: &str| RuleRef::Namespaced {
            namespace: namespace.into(),
            name: name.into(),
        };
        assert_eq!(rule("a", "n"), Ok(named("n", "a")));
        assert_eq!(rule("m/a", "n"), Ok(named("m", "a")));
        assert_eq!(rule("drule/a", "n"), Ok(named("n", "a")));
        assert_eq!(rule("cdrule/a", "n"), Ok(RuleRef::Cluster("a".into())));
        for wrong in ["", "a/b/c", "../a", "A", "a/..", "a?b", "a-", ".a", "a-/b"] {
            assert!(rule(wrong, "n").is_err(), "{wrong}");
        }
    }
}
