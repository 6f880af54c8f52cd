//! The documents of this project, and small ones made for the tests.

use std::fs;
use std::path::Path;

#[test]
fn the_tables_of_the_documentation_are_those_of_the_results() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let documents = reproduction::documents(&root).unwrap();
    let tables: usize =
        documents.iter().map(|document| document.before.matches("<!-- table ").count()).sum();
    assert!(tables > 0, "the documentation shows no results at all");
    for document in documents {
        assert!(
            document.is_current(),
            "{}: run `cargo run -p reproduction`",
            document.path.display()
        );
    }
}

#[test]
fn a_changed_result_is_noticed_and_a_missing_one_is_named() {
    let root = tempfile::tempdir().unwrap();
    let docs = root.path().join("docs");
    fs::create_dir(&docs).unwrap();
    fs::write(root.path().join("README.md"), "no tables\n").unwrap();
    fs::write(root.path().join("data.csv"), "a,b\n1,\"x, y\"\n").unwrap();
    let page = docs.join("page.md");
    let text = "<!-- table csv data.csv -->\n<!-- end of table -->\n";
    fs::write(&page, text).unwrap();

    let current = |root: &Path| -> bool {
        let documents = reproduction::documents(root).unwrap();
        documents.iter().all(|document| document.is_current())
    };
    assert!(!current(root.path()));
    let documents = reproduction::documents(root.path()).unwrap();
    let filled = documents.iter().find(|d| d.path == page).unwrap();
    assert!(filled.after.contains("x, y"), "{}", filled.after);
    fs::write(&page, &filled.after).unwrap();
    assert!(current(root.path()));
    fs::write(root.path().join("data.csv"), "a,b\n2,z\n").unwrap();
    assert!(!current(root.path()));

    fs::remove_file(root.path().join("data.csv")).unwrap();
    let error = format!("{:#}", reproduction::documents(root.path()).unwrap_err());
    assert!(error.contains("data.csv") && error.contains("page.md"), "{error}");
}

#[cfg(unix)]
#[test]
fn links_in_a_circle_are_not_followed_and_pipes_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let docs = root.path().join("docs");
    fs::create_dir(&docs).unwrap();
    fs::write(root.path().join("README.md"), "no tables\n").unwrap();
    fs::write(docs.join("page.md"), "no tables\n").unwrap();
    std::os::unix::fs::symlink(&docs, docs.join("again")).unwrap();
    assert_eq!(reproduction::documents(root.path()).unwrap().len(), 2);

    let pipe = docs.join("pipe.md");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let error = format!("{:#}", reproduction::documents(root.path()).unwrap_err());
    assert!(error.contains("not a regular file"), "{error}");
}
