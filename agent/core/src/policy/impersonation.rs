//! The ServiceAccounts under which the agent writes the copies of rules.
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use runnel_proto::model::{Reason, RuleName};

use crate::copy::CopyError;

/// A ServiceAccount of the member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceAccount {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl ServiceAccount {
    /// Returns the name of its user, as the API server knows it.
    pub fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }
}

impl fmt::Display for ServiceAccount {
    /// `namespace/name`, as the policy names it.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.namespace, self.name)
    }
}

/// The accounts by the namespace of a rule on the hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    /// The accounts of namespaces that are named.
    pub named: BTreeMap<Arc<str>, ServiceAccount>,
    /// The account of all other namespaces.
    pub others: Option<ServiceAccount>,
}

impl Impersonation {
    /// Whether the agent writes all copies under its own account.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && self.others.is_none()
    }

    /// Returns the account under which the copies of a rule are written; `None` for the agent's own account, which writes
    /// those of cluster-scoped rules.
    pub fn account(&self, rule: &RuleName) -> Option<&ServiceAccount> {
        if rule.is_cluster_scoped() {
            return None;
        }
        self.named.get(&*rule.namespace).or(self.others.as_ref())
    }

    /// Returns the account for the removal of copies whose rule is not known: it may be a rule of any namespace.
    ///
    /// # Errors
    /// The error of the copies, if only some namespaces have an account.
    pub fn account_of_unknown_rule(&self) -> Result<Option<&ServiceAccount>, CopyError> {
        if self.others.is_none() && !self.named.is_empty() {
            let message = "the rule of this copy is not known, so the agent cannot tell which account of impersonate removes it: \
                           add an account for hubNamespace: '*' to this member's policy, or delete the copy";
            return Err(CopyError::new(Reason::Denied, message));
        }
        Ok(self.others.as_ref())
    }
}
