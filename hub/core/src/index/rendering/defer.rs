//! What is put off until it has been rendered.
use std::sync::Arc;

use runnel_proto::model::{ClusterName, RuleUid, SourceRef};

use super::super::{Cluster, Effect, Index};
use super::{has_content, set_referenced_now};
use crate::plan::SourceState;

impl Index {
    /// Whether what one source is to a rule now waits to be rendered.
    pub(in crate::index) fn defer_source(
        &mut self,
        uid: &RuleUid,
        source: &SourceRef,
        selected: Option<&SourceState>,
        effect: &mut Effect,
    ) -> bool {
        let Some(entry) = self
            .rules
            .get_mut(uid)
            .filter(|entry| self.rendering.aside && entry.cluster_plans.is_rendered())
        else {
            return false;
        };
        if !has_content(selected) {
            return false;
        }
        if !entry.plan.is_unchanged_by(source, selected) || entry.unrendered.since.is_some() {
            self.selection.select(source, uid);
            entry.unrendered.sources.insert(source.clone());
            effect.render.insert(uid.clone());
        }
        true
    }

    /// What a Secret is to a rule that takes values from it waits to be rendered, or makes them unknown at once. `None`: that
    /// is to be seen to here; else whether the rule takes values from it.
    pub(in crate::index) fn defer_references(
        &mut self,
        uid: &RuleUid,
        secret: &SourceRef,
        body: Option<&SourceState>,
        effect: &mut Effect,
    ) -> Option<bool> {
        let aside = self.rendering.aside;
        let entry = self
            .rules
            .get_mut(uid)
            .filter(|entry| aside && entry.cluster_plans.is_rendered())?;
        if !entry.rule.reads_secret(secret) {
            return Some(false);
        }
        self.selection.select(secret, uid);
        if matches!(body, Some(SourceState::Unread)) {
            entry.unrendered.note(secret);
            let plan = Arc::make_mut(&mut entry.plan);
            set_referenced_now(
                &entry.rule,
                plan,
                &mut entry.cluster_plans,
                secret,
                body,
                &mut entry.unrendered,
                &self.revision_hasher,
            );
            self.touch(uid, effect);
        } else {
            entry.unrendered.sources.insert(secret.clone());
        }
        effect.render.insert(uid.clone());
        Some(true)
    }

    /// Whether a selected cluster waits until its content is rendered. Returns whether it has the
    /// rule already.
    pub(in crate::index) fn defer_cluster(
        &mut self,
        uid: &RuleUid,
        name: &ClusterName,
        effect: &mut Effect,
    ) -> Option<bool> {
        let Cluster { labels, .. } = self.clusters.get(name)?;
        let aside = self.rendering.aside;
        let entry = self
            .rules
            .get_mut(uid)
            .filter(|entry| aside && entry.cluster_plans.lacks(name, labels))?;
        entry.unrendered.clusters.insert(name.clone());
        effect.render.insert(uid.clone());
        Some(!entry.lacks(name))
    }
}
