"""Settings of a Spark that is not to live long: it starts sooner and compiles next to nothing."""

JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
MEMORY = "1g"
SETTINGS = {
    "spark.driver.memory": MEMORY,
    "spark.driver.extraJavaOptions": JVM,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
OPTIONS = [
    *("--memory", MEMORY),
    *(it for setting in SETTINGS.items() for it in ("--conf", "{}={}".format(*setting))),
]
"""The same for `sapwood pipeline run`."""
