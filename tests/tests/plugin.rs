//! `kubectl runnel` as a person calls it: through the real kubectl, with the real helm, on real control planes.

#[path = "plugin/errors.rs"]
mod errors;
#[path = "plugin/stage.rs"]
mod stage;
#[path = "plugin/story.rs"]
mod story;
