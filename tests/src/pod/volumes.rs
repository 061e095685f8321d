//! The volumes of a pod as folders, filled and kept fresh as a kubelet does it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{
    ConfigMap, KeyToPath, Secret, ServiceAccountTokenProjection, Volume,
};
use kube::{Api, Client};

use super::account;

/// The files of one volume by their path in it.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

const CURRENT: &str = "..data";

/// The pod that needs the content of volumes.
pub(super) struct Asker<'a> {
    pub client: &'a Client,
    pub namespace: &'a str,
    pub account: &'a str,
}

impl Asker<'_> {
    /// What is in a volume at the moment; `None` for one that belongs to the pod alone.
    pub async fn files(&self, volume: &Volume) -> Result<Option<Files>> {
        let name = &volume.name;
        if volume.empty_dir.is_some() {
            return Ok(None);
        }
        let files = if let Some(secret) = &volume.secret {
            let named = secret.secret_name.as_deref().unwrap_or_default();
            self.secret(named, secret.items.as_deref(), secret.optional)
                .await
        } else if let Some(config) = &volume.config_map {
            self.config_map(&config.name, config.items.as_deref(), config.optional)
                .await
        } else if let Some(projected) = &volume.projected {
            let mut all = Files::new();
            for source in projected.sources.iter().flatten() {
                all.extend(if let Some(secret) = &source.secret {
                    self.secret(&secret.name, secret.items.as_deref(), secret.optional).await?
                } else if let Some(config) = &source.config_map {
                    self.config_map(&config.name, config.items.as_deref(), config.optional).await?
                } else if let Some(token) = &source.service_account_token {
                    self.token(token).await?
                } else {
                    bail!("the projected volume {name} has a source that the harness does not know: {source:?}");
                });
            }
            Ok(all)
        } else {
            bail!("the harness does not know what the volume {name} is: {volume:?}");
        };
        files
            .map(Some)
            .with_context(|| format!("the volume {name}"))
    }

    async fn secret(
        &self,
        name: &str,
        items: Option<&[KeyToPath]>,
        optional: Option<bool>,
    ) -> Result<Files> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), self.namespace);
        let found = api.get_opt(name).await?;
        let data = found.map(|secret| secret.data.unwrap_or_default());
        let data = data.map(|data| {
            data.into_iter()
                .map(|(key, value)| (key, value.0))
                .collect()
        });
        chosen(data, items, optional == Some(true))
            .with_context(|| format!("the Secret {}/{name}", self.namespace))
    }

    async fn config_map(
        &self,
        name: &str,
        items: Option<&[KeyToPath]>,
        optional: Option<bool>,
    ) -> Result<Files> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), self.namespace);
        let data = api.get_opt(name).await?.map(|found| {
            let texts = found
                .data
                .unwrap_or_default()
                .into_iter()
                .map(|(key, text)| (key, text.into_bytes()));
            let bytes = found
                .binary_data
                .unwrap_or_default()
                .into_iter()
                .map(|(key, value)| (key, value.0));
            texts.chain(bytes).collect()
        });
        chosen(data, items, optional == Some(true))
            .with_context(|| format!("the ConfigMap {}/{name}", self.namespace))
    }

    async fn token(&self, wanted: &ServiceAccountTokenProjection) -> Result<Files> {
        let token = account::token(
            self.client,
            self.namespace,
            self.account,
            wanted.audience.as_deref(),
        )
        .await?;
        Ok(Files::from([(wanted.path.clone(), token.into_bytes())]))
    }
}

fn chosen(data: Option<Files>, items: Option<&[KeyToPath]>, optional: bool) -> Result<Files> {
    let Some(data) = data else {
        return if optional {
            Ok(Files::new())
        } else {
            bail!("there is none, so the pod could not start")
        };
    };
    let Some(items) = items else {
        return Ok(data);
    };
    let mut files = Files::new();
    for item in items {
        match data.get(&item.key) {
            Some(content) => drop(files.insert(item.path.clone(), content.clone())),
            None if optional => {}
            None => bail!("it has no key {}, so the pod could not start", item.key),
        }
    }
    Ok(files)
}

/// Makes `files` the content of a mount, all of it in one step: `..data` points to one generation or to the next.
pub(super) fn publish(mount: &Path, generation: u64, files: &Files) -> Result<()> {
    let context = || format!("cannot fill {}", mount.display());
    fs::create_dir_all(mount).with_context(context)?;
    let folder = format!("..generation-{generation}");
    for (path, content) in files {
        let path = mount.join(&folder).join(within(path)?);
        fs::create_dir_all(path.parent().unwrap_or(mount)).with_context(context)?;
        fs::write(&path, content).with_context(context)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).with_context(context)?;
    }
    fs::create_dir_all(mount.join(&folder)).with_context(context)?;
    let (current, next) = (mount.join(CURRENT), mount.join("..data_next"));
    let old = fs::read_link(&current).ok();
    symlink(&folder, &next).with_context(context)?;
    fs::rename(&next, &current).with_context(context)?;
    let shown: Vec<String> = files
        .keys()
        .filter_map(|path| path.split('/').next())
        .map(str::to_owned)
        .collect();
    for name in &shown {
        let link = mount.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(CURRENT).join(name), &link).with_context(context)?;
        }
    }
    for entry in fs::read_dir(mount).with_context(context)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("..") && !shown.contains(&name) {
            fs::remove_file(entry.path()).with_context(context)?;
        }
    }
    if let Some(old) = old {
        fs::remove_dir_all(mount.join(old)).with_context(context)?;
    }
    Ok(())
}

fn within(path: &str) -> Result<PathBuf> {
    let path = PathBuf::from(path);
    if path
        .components()
        .all(|part| matches!(part, Component::Normal(_)))
    {
        return Ok(path);
    }
    bail!("{} is no path within a volume", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn files(pairs: &[(&str, &str)]) -> Files {
        pairs
            .iter()
            .map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()))
            .collect()
    }

    #[test]
    fn a_mount_changes_in_one_step_and_keeps_nothing_old() -> Result<()> {
        let scratch = Scratch::new("mount")?;
        let mount = scratch.path().join("etc/runnel/policy");
        publish(
            &mount,
            1,
            &files(&[("policy.yaml", "one"), ("more/deep", "x"), ("gone", "y")]),
        )?;
        // An open file is unchanged: a reader sees one generation or the other.
        let open = fs::canonicalize(mount.join("policy.yaml"))?;
        assert_eq!(fs::read_to_string(&open)?, "one");
        assert_eq!(fs::read_to_string(mount.join("more/deep"))?, "x");
        publish(
            &mount,
            2,
            &files(&[("policy.yaml", "two"), ("more/deep", "z")]),
        )?;
        assert_eq!(fs::read_to_string(mount.join("policy.yaml"))?, "two");
        assert_eq!(fs::read_to_string(mount.join("more/deep"))?, "z");
        assert!(!mount.join("gone").exists() && !open.exists());
        assert!(publish(&mount, 3, &files(&[("../out", "x")])).is_err());
        publish(&mount, 4, &Files::new())?;
        assert!(!mount.join("policy.yaml").exists());
        Ok(())
    }

    #[test]
    fn absent_volume_is_refused_unless_optional() -> Result<()> {
        let item = |key: &str| KeyToPath {
            key: key.to_owned(),
            path: format!("as-{key}"),
            mode: None,
        };
        let data = files(&[("a", "1"), ("b", "2")]);
        assert_eq!(chosen(Some(data.clone()), None, false)?, data);
        assert_eq!(
            chosen(Some(data.clone()), Some(&[item("a")]), false)?,
            files(&[("as-a", "1")])
        );
        assert!(chosen(Some(data.clone()), Some(&[item("c")]), false).is_err());
        assert!(chosen(Some(data), Some(&[item("c")]), true)?.is_empty());
        assert!(chosen(None, None, true)?.is_empty());
        assert!(chosen(None, None, false).is_err());
        Ok(())
    }
}
