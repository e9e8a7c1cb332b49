"""Was anything lost, doubled or reordered? Told from the data alone, however much there is.

In: topics as DataFrames; how a record tells its producer and number (`numbering`); if there are
any, producers' receipts and subscribers' deliveries (`receipts`). Out: findings, each with the
place where it shows (`findings`, functions from DataFrames to DataFrames), and of these a verdict
(`judging`, `verdict`) and a page for people (`page`). Always: the data stays in Spark, and only
counts and some examples come to the driver; no promise is invented: what nobody acknowledged may
be missing, and what retention has removed isn't lost.
"""
