//! The files of the page.

/// One file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asset {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! asset {
    ($name:literal, $kind:expr) => {
        Asset {
            name: $name,
            kind: $kind,
            text: include_str!(concat!("assets/", $name)),
        }
    };
}

/// Every file. The first one is the page itself.
static ASSETS: &[Asset] = &[
    asset!("index.html", HTML),
    asset!("style.css", "text/css; charset=utf-8"),
    asset!("icon.svg", "image/svg+xml"),
    asset!("app.js", SCRIPT),
    asset!("model.js", SCRIPT),
    asset!("matrix.js", SCRIPT),
    asset!("rollout.js", SCRIPT),
    asset!("charts.js", SCRIPT),
    asset!("views.js", SCRIPT),
    asset!("words.js", SCRIPT),
    asset!("dom.js", SCRIPT),
];

/// Returns a file by its name; the empty name is that of the page.
pub(super) fn asset(name: &str) -> Option<&'static Asset> {
    let name = if name.is_empty() { "index.html" } else { name };
    ASSETS.iter().find(|asset| asset.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names that a text quotes after a word.
    fn named(text: &str, word: &str) -> Vec<String> {
        let parts = text.split(word).skip(1);
        parts
            .filter_map(|part| Some(part.split_once('"')?.0.trim_start_matches("./").to_owned()))
            .collect()
    }

    #[test]
    fn page_names_only_its_own_files() {
        let page = asset("").unwrap().text;
        let names = [named(page, "src=\""), named(page, "href=\"")].concat();
        assert!(names.len() >= 3, "{names:?}");
        for name in names.iter().filter(|name| !name.starts_with('#')) {
            assert!(asset(name).is_some(), "{name}");
        }
        for script in ASSETS.iter().filter(|asset| asset.kind == SCRIPT) {
            for name in named(script.text, " from \"") {
                assert!(asset(&name).is_some(), "{}: {name}", script.name);
            }
        }
    }

    #[test]
    fn page_reads_the_count_of_the_hub_and_drops_unseen_characters() {
        let count = format!("annotations?.[\"{}\"]", runnel_api::COPY_COUNT);
        assert!(asset("views.js").unwrap().text.contains(&count));
        assert!(asset("dom.js").unwrap().text.contains(r"/\p{Cf}/gu"));
    }

    #[test]
    fn page_has_no_inline_code_and_no_other_hosts() {
        for asset in ASSETS {
            for refused in ["innerHTML", "eval(", "style=\"", "onclick=\"", "<script>"] {
                assert!(!asset.text.contains(refused), "{}: {refused}", asset.name);
            }
            let others = asset.text.replace("http://www.w3.org/2000/svg", "");
            assert!(
                !others.contains("http:") && !others.contains("https:"),
                "{}",
                asset.name
            );
        }
    }
}
