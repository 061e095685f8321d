//! Validates the arguments of `runnel-hub token create`.
use std::collections::BTreeMap;

use jiff::SignedDuration;
use runnel_proto::model::{is_label_key, is_label_value};
use runnel_transport::identity::{is_address, is_cluster_name};

use crate::config::any_duration;

/// The arguments of `runnel-hub token create`, not validated.
#[derive(Clone, Debug, Default)]
pub struct TokenRequest {
    /// Name of the `MemberCluster`.
    pub cluster: String,
    /// `--label`, `key=value` each.
    pub labels: Vec<String>,
    /// `--ttl`, such as `1h` or `30m`.
    pub ttl: String,
    /// `--advertise`, `host:port` each.
    pub advertise: Vec<String>,
}

/// The validated arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidTokenRequest {
    /// Name of the `MemberCluster`.
    pub cluster: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The validity of the token.
    pub ttl: SignedDuration,
    /// The addresses of the hub for agents; empty: those in the hub's identity.
    pub advertise: Vec<String>,
}

/// Why the arguments are invalid, with the argument and a hint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The name of the cluster is invalid.
    #[error(
        "`{0}` is not a cluster name: use at most 63 lower-case letters, digits, `-` and `.`, such as eu-3"
    )]
    Cluster(String),
    /// A label is malformed.
    #[error("--label `{0}` is not a label: write key=value, such as --label env=prod")]
    Label(String),
    /// A label has two values.
    #[error("--label {0} is given twice with different values: give it once")]
    LabelTwice(String),
    /// The time is malformed.
    #[error("--ttl `{0}` is not a time: write for example 30m or 1h")]
    Ttl(String),
    /// The time is too short or too long.
    #[error("--ttl `{0}` is out of range: choose between 1m and 24h")]
    TtlRange(String),
    /// An address is malformed.
    #[error("--advertise `{0}` is not an address: write host:port, such as hub.example.com:8443")]
    Advertise(String),
}

impl TokenRequest {
    /// Validates the arguments.
    ///
    /// # Errors
    /// [`RequestError`], for the first argument that is wrong.
    pub fn check(&self) -> Result<ValidTokenRequest, RequestError> {
        if !is_cluster_name(&self.cluster) {
            return Err(RequestError::Cluster(self.cluster.clone()));
        }
        if let Some(wrong) = self.advertise.iter().find(|address| !is_address(address)) {
            return Err(RequestError::Advertise(wrong.clone()));
        }
        Ok(ValidTokenRequest {
            cluster: self.cluster.clone(),
            labels: labels(&self.labels)?,
            ttl: ttl(&self.ttl)?,
            advertise: self.advertise.clone(),
        })
    }
}

fn ttl(text: &str) -> Result<SignedDuration, RequestError> {
    let read = any_duration(text.trim())
        .ok()
        .and_then(|ttl| SignedDuration::try_from(ttl).ok());
    let ttl = read.ok_or_else(|| RequestError::Ttl(text.to_owned()))?;
    let range = SignedDuration::from_mins(1)..=SignedDuration::from_hours(24);
    if range.contains(&ttl) {
        Ok(ttl)
    } else {
        Err(RequestError::TtlRange(text.to_owned()))
    }
}

fn labels(texts: &[String]) -> Result<BTreeMap<String, String>, RequestError> {
    let mut labels = BTreeMap::new();
    for text in texts {
        let pair = text
            .split_once('=')
            .filter(|(key, value)| is_label_key(key) && is_label_value(value));
        let (key, value) = pair.ok_or_else(|| RequestError::Label(text.clone()))?;
        if labels
            .insert(key.to_owned(), value.to_owned())
            .is_some_and(|before| before != value)
        {
            return Err(RequestError::LabelTwice(key.to_owned()));
        }
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> TokenRequest {
        TokenRequest {
            cluster: "eu-3".into(),
            ttl: "1h".into(),
            ..TokenRequest::default()
        }
    }

    #[test]
    fn a_good_command_line_is_understood() {
        let labels = ["env=prod", "example.com/zone=a_1", "empty=", "env=prod"]
            .map(str::to_owned)
            .to_vec();
        let advertise = vec!["hub.example.com:8443".to_owned()];
        let checked = TokenRequest {
            labels,
            advertise,
            ttl: "1h30m".into(),
            ..request()
        }
        .check()
        .unwrap();
        assert_eq!(checked.ttl, SignedDuration::from_mins(90));
        assert_eq!(checked.labels.len(), 3);
        assert_eq!(checked.labels["empty"], "");
    }

    #[test]
    fn each_mistake_names_its_part_and_a_hint() {
        for cluster in ["", "EU", "a_b", "a/b"] {
            let error = TokenRequest {
                cluster: cluster.into(),
                ..request()
            }
            .check()
            .unwrap_err();
            assert!(matches!(error, RequestError::Cluster(_)), "{error}");
        }
        for label in [
            "env", "=x", "a b=c", "-a=b", "/a=b", "a/=b", "a=b=c", "a=ü", "A_/b=c",
        ] {
            let error = TokenRequest {
                labels: vec![label.into()],
                ..request()
            }
            .check()
            .unwrap_err();
            assert_eq!(error, RequestError::Label(label.to_owned()));
        }
        let twice = TokenRequest {
            labels: vec!["a=1".into(), "a=2".into()],
            ..request()
        };
        assert_eq!(twice.check(), Err(RequestError::LabelTwice("a".into())));
        for ttl in ["", "soon", "1x", "-1h"] {
            let error = TokenRequest {
                ttl: ttl.into(),
                ..request()
            }
            .check()
            .unwrap_err();
            assert_eq!(error, RequestError::Ttl(ttl.to_owned()));
        }
        for ttl in ["0s", "59s", "25h", "2d"] {
            let error = TokenRequest {
                ttl: ttl.into(),
                ..request()
            }
            .check()
            .unwrap_err();
            assert_eq!(error, RequestError::TtlRange(ttl.to_owned()));
        }
        let error = TokenRequest {
            advertise: vec!["hub".into()],
            ..request()
        }
        .check()
        .unwrap_err();
        assert!(
            error.to_string().starts_with("--advertise `hub`"),
            "{error}"
        );
    }
}
