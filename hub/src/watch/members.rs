//! The watch of `MemberCluster`s.
use std::collections::BTreeSet;
use std::sync::Arc;

use futures::StreamExt;
use kube::runtime::watcher::Event;
use kube::{Client, ResourceExt};
use runnel_proto::model::{ClusterName, DeletionPolicy, RuleUid};

use super::{Anew, own_events, refusal};
use crate::crd::MemberCluster;
use crate::index::Cluster;
use crate::rounds::Watched;
use crate::shared::Shared;
use crate::writer::Book;

/// Watches the member clusters for ever. `listed` is called at each complete list.
pub async fn watch_members(client: Client, shared: Arc<Shared>, book: Arc<Book>, listed: impl Fn() + Send) {
    let mut events = Anew::new(shared.rounds.subscribe(), move || own_events::<MemberCluster>(client.clone()).boxed());
    let mut seen = BTreeSet::new();
    loop {
        let Some(event) = events.next().await else { continue };
        match event {
            Ok(Event::Init) => seen.clear(),
            Ok(Event::InitApply(object)) => {
                seen.insert(ClusterName::from(object.name_any()));
                take_in_member(object, &shared, &book);
            }
            Ok(Event::InitDone) => {
                let gone = book.members_not_in(&seen);
                for name in &gone {
                    forget(name, &shared, &book);
                }
                shared.rounds.done(Watched::Own("memberclusters"), events.round);
                listed();
            }
            Ok(Event::Apply(object)) => take_in_member(object, &shared, &book),
            Ok(Event::Delete(object)) => {
                let name = ClusterName::from(object.name_any());
                // A name may have been given to another member already.
                if book.with_member(&name, |known| known.is_none_or(|known| known.metadata.uid == object.metadata.uid))
                {
                    forget(&name, &shared, &book);
                }
            }
            Err(error) => match refusal(&error, "give the hub get, list and watch on it") {
                Some(why) => tracing::error!(
                    "cannot watch memberclusters: {why}; install the CRDs with `runnel-hub crds | kubectl apply --server-side -f -` and check the hub's rights. Trying again"
                ),
                None => tracing::warn!(%error, "the watch of memberclusters broke; trying again"),
            },
        }
    }
}

/// A member is as given now, unless something newer is known.
pub fn take_in_member(object: MemberCluster, shared: &Shared, book: &Book) {
    let name = ClusterName::from(object.name_any());
    let cluster = Cluster::read(&object);
    if !book.set_member(name.clone(), object) {
        return;
    }
    let reborn = shared.index.read().cluster(&name).is_some_and(|known| known.uid != cluster.uid);
    if reborn {
        shared.ledger.lock().forget(&name);
    }
    // Before anything of it is seen to.
    note_leaving(&name, cluster.leaving, shared);
    shared.change(|index| index.set_cluster(name.clone(), cluster));
    // Whatever changed may end the session: it looks for itself.
    shared.wake(&name);
    shared.dirty_members.add([name]);
}

fn note_leaving(name: &ClusterName, leaving: bool, shared: &Shared) {
    let index = shared.index.read();
    let retains =
        |uid: &RuleUid| index.rule(uid).is_some_and(|entry| entry.rule.terms.deletion_policy == DeletionPolicy::Retain);
    shared.ledger.lock().leaves(name, leaving, retains);
}

fn forget(name: &ClusterName, shared: &Shared, book: &Book) {
    book.remove_member(name);
    let mut ledger = shared.ledger.lock();
    for (_, rule, copies) in ledger.held_copies(name).filter(|(.., copies)| *copies > 0) {
        tracing::warn!(cluster = %name, %rule, copies, "the MemberCluster was deleted: these copies are left behind there");
    }
    ledger.forget(name);
    drop(ledger);
    shared.change(|index| index.remove_cluster(name));
}
